"""The naive way that the engine is compared with: a cut model, and one row at a time."""

import copy
import random
from collections.abc import Collection, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.models.surgery import apply_edits
from tests.given import tiny

NEAR_TIE = 1e-4
"""If the two best choices are closer than this, rounding may decide between them."""


def random_samples(seed: int, count: int = 12, kinds: Sequence[str] = ("choices",)) -> list[Sample]:
    """Documents of random lengths; some choices share their first tokens, some have one token."""
    generator = random.Random(seed)

    def draw_words(shortest: int, longest: int) -> tuple[int, ...]:
        length = generator.randint(shortest, longest)
        return tuple(generator.randrange(4, tiny.VOCABULARY) for _ in range(length))

    samples: list[Sample] = []
    for index in range(count):
        kind = generator.choice(kinds)
        context = draw_words(1, 14)
        shared_start = draw_words(0, 2)
        rows: list[Row] = []
        for _ in range(generator.randint(2, 5)):
            continuation = shared_start + draw_words(1, 4)
            rows.append(Row(context, continuation, generator.randint(1, 9)))
        gold = generator.randrange(len(rows))
        if kind == "choices":
            samples.append(Sample(index, kind, gold, tuple(rows), str(index)))
        else:
            samples.append(Sample(index, kind, 0, (rows[0],), str(index)))
    return samples


def naive_loglikelihoods(
    model: PreTrainedModel, samples: Sequence[Sample], removed_units: Collection[str] = ()
) -> np.ndarray:
    """Log-likelihood of every row of all samples, (rows,), by a model without these units."""
    cut_model = cut(model, removed_units)
    loglikelihoods: list[float] = []
    for sample in samples:
        loglikelihoods += [row_loglikelihood(cut_model, row) for row in sample.rows]
    return np.array(loglikelihoods)


def naive_gold_losses(
    model: PreTrainedModel, samples: Sequence[Sample], removed_units: Collection[str] = ()
) -> np.ndarray:
    """Loss of the right answer of every sample, (samples,), by a model without these units."""
    cut_model = cut(model, removed_units)
    gold_rows = [sample.rows[sample.gold] for sample in samples]
    return np.array([-row_loglikelihood(cut_model, row) for row in gold_rows])


def cut(model: PreTrainedModel, removed_units: Collection[str]) -> PreTrainedModel:
    """A copy of a model without these units."""
    if not removed_units:
        return model
    return apply_edits(copy.deepcopy(model), sorted(removed_units))


@torch.inference_mode()
def row_loglikelihood(model: PreTrainedModel, row: Row) -> float:
    """Log-likelihood of a row's continuation, by one forward pass over the row alone."""
    token_ids = torch.tensor([row.context + row.continuation])
    logprobs = model(token_ids, use_cache=False).logits[0].log_softmax(-1)
    first_position = len(row.context) - 1
    loglikelihood = 0.0
    for position, token in enumerate(row.continuation, start=first_position):
        loglikelihood += float(logprobs[position, token])
    return loglikelihood


def token_sequences(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    """The token sequence of each sample."""
    return [sample.sequence() for sample in samples]
