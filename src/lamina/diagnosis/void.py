"""Which layers a token passes without growing: void layers (arXiv 2505.14467).

Let n_l be the norm of the stream that leaves layer l, and Δ_l = n_l - n_(l-1). Layer l is void for a token if
Δ_l < α (max Δ_j - min Δ_j), both over the layers j before it. Nothing is removed: the accuracy metric says whether a
void layer can go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.configuration import Diagnosis
from lamina.config.entry import option
from lamina.data.splitting import documents

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample
    from lamina.engine import taps


class Void(Diagnosis):
    """For which share of tokens the norm of the stream grows little at a layer, next to what it grew before it.

    The tokens of questions and of their answers are counted apart too.
    """

    kind: Literal["void"] = "void"
    alpha: float = option(
        "Share of the range of the earlier layers' growth that a layer must reach.", 0.8, gt=0, le=1
    )


PARTS = ("void", "void_prompt", "void_response")


def diagnose(
    model: PreTrainedModel, samples: Sequence[Sample], options: Void, tokens: int
) -> list[dict[str, Any]]:
    """Rows of table `diagnoses` for the layers 1 … L-1; layer 0 has no layer before it for comparison.

    `void` : share of all tokens for which the layer is void, with its interval over samples.
    `void_prompt`, `void_response` : the same over the tokens of the question and of its right answer; texts have
        neither.

    The control is the same share after each token's Δ were shuffled over the layers: what the threshold alone calls
    void, wherever a layer stands.
    """
    import numpy as np
    import torch

    from lamina.engine import taps
    from lamina.models.structure import layers_of
    from lamina.relevance.statistics import ratios

    depth = len(layers_of(model))
    numbers = np.zeros((len(PARTS), len(samples)))
    counts = np.zeros((2, len(PARTS), len(samples), depth - 1))
    generator = torch.Generator().manual_seed(0)

    def add(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        norms = torch.stack(
            [streams[place].float().norm(dim=-1) for place in range(depth + 1)]
        ).cpu()
        for line, (index, length) in enumerate(
            zip(batch.samples, batch.real.sum(1).tolist(), strict=True)
        ):
            growth = norms[:, line, :length].diff(dim=0)
            shuffled = growth.gather(0, torch.rand(growth.shape, generator=generator).argsort(0))
            for number, part in enumerate(_parts(samples[index])):
                numbers[number, index] = growth[:, part].shape[1]
                for control, increments in enumerate((growth, shuffled)):
                    counts[control, number, index] = void(increments[:, part], options.alpha).sum(1)

    sequences = [sample.sequence() for sample in samples]
    taps.run(model, sequences, range(depth + 1), add, tokens)
    (copies,) = documents([sequences])
    return [
        {"layer": layer, "measure": measure, **row, "control": control["value"]}
        for measure, number, share, chance in zip(PARTS, numbers, *counts, strict=True)
        for layer, (row, control) in enumerate(
            zip(ratios(share, number, copies), ratios(chance, number, copies), strict=True), 1
        )
    ]


def void(growth: torch.Tensor, alpha: float) -> torch.Tensor:
    """Whether layers 1 … L-1 are void for each token, (L-1, tokens), from the growth Δ of all layers, (L, tokens)."""
    spread = growth.cummax(0).values - growth.cummin(0).values
    return growth[1:] < alpha * spread[:-1]


def _parts(sample: Sample) -> tuple[slice, slice, slice]:
    """All tokens of a sample's sequence, those of the question, and those of the answer."""
    if sample.kind == "text":
        return slice(None), slice(0), slice(0)
    end = len(sample.rows[sample.gold].context)
    return slice(None), slice(end), slice(end, None)
