"""Void layers: where the norm of a token's stream hardly grows [arXiv 2505.14467].

Let n_l be the norm of the stream that leaves layer l, and Δ_l = n_l - n_(l-1). Layer l is void for
a token if Δ_l < α (max Δ_j - min Δ_j), both over the layers j before it. Nothing is removed:
whether a void layer can be removed is what the metric accuracy measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from lamina.data.splitting import index_documents
from lamina.diagnosis.rows import DiagnosisRow, make_row
from lamina.options.diagnoses import Diagnosis
from lamina.options.entry import option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample
    from lamina.engine.taps import Batch


class Void(Diagnosis):
    """For which share of tokens the norm of the stream grows little at a layer.

    The growth is compared with that before the layer.

    The tokens of questions and of their answers are counted apart too.
    """

    kind: Literal["void"] = "void"
    alpha: float = option(
        "Share of the range of the earlier layers' growth that a layer must reach.", 0.8, gt=0, le=1
    )


MEASURES = ("void", "void_prompt", "void_response")


def diagnose(
    model: PreTrainedModel, samples: Sequence[Sample], options: Void, token_budget: int
) -> list[DiagnosisRow]:
    """Rows for the layers 1 … L-1; layer 0 has no earlier layer to compare with.

    `void` : share of all tokens for which the layer is void, with its interval over documents.
    `void_prompt`, `void_response` : the same over the tokens of the question and over those of its
        right answer. Texts have neither.

    The control is the same share after shuffling the Δ of each token over the layers: what the
    threshold calls void regardless of the order of the layers.
    """
    from lamina.engine import taps
    from lamina.models.structure import layers_of
    from lamina.relevance.statistics import bootstrap_ratios

    n_layers = len(layers_of(model))
    sequences = [sample.sequence() for sample in samples]
    counts = VoidCounts(samples, n_layers, options.alpha)
    taps.run_sequences(model, sequences, range(n_layers + 1), counts.add_batch, token_budget)

    (document_indices,) = index_documents([sequences])
    rows = []
    for index, measure in enumerate(MEASURES):
        n_tokens = counts.n_tokens[index]
        shares = bootstrap_ratios(counts.n_void[index], n_tokens, document_indices)
        controls = bootstrap_ratios(counts.n_void_shuffled[index], n_tokens, document_indices)
        for layer, (share, control) in enumerate(zip(shares, controls, strict=True), start=1):
            rows.append(make_row(measure, share, layer, control["value"]))
    return rows


class VoidCounts:
    """For how many tokens of each sample each layer is void.

    All tokens, those of the question and those of the answer are counted, as in `MEASURES`.

    `n_tokens` (measures, samples); `n_void` and `n_void_shuffled` (measures, samples, L-1).
    """

    def __init__(self, samples: Sequence[Sample], n_layers: int, alpha: float) -> None:
        import numpy as np
        import torch

        self.samples = samples
        self.n_layers = n_layers
        self.alpha = alpha
        self.n_tokens = np.zeros((len(MEASURES), len(samples)))
        self.n_void = np.zeros((len(MEASURES), len(samples), n_layers - 1))
        self.n_void_shuffled = np.zeros_like(self.n_void)
        self._generator = torch.Generator().manual_seed(0)

    def add_batch(self, batch: Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Count the tokens of a batch, given the streams at all boundaries."""
        import torch

        boundaries = range(self.n_layers + 1)
        norms = torch.stack([streams[boundary].float().norm(dim=-1) for boundary in boundaries])
        norms = norms.cpu()  # (L + 1, lines, T)
        lengths = batch.real.sum(1).tolist()
        for line, (sample_index, length) in enumerate(zip(batch.samples, lengths, strict=True)):
            self._add_sample(sample_index, norms[:, line, :length].diff(dim=0))

    def _add_sample(self, sample_index: int, growth: torch.Tensor) -> None:
        """Count the tokens of one sample by the growth Δ of their norms, (L, tokens)."""
        import torch

        random_order = torch.rand(growth.shape, generator=self._generator).argsort(0)
        shuffled_growth = growth.gather(0, random_order)
        for index, span in enumerate(_token_spans(self.samples[sample_index])):
            self.n_tokens[index, sample_index] = growth[:, span].shape[1]
            is_void = find_void(growth[:, span], self.alpha)
            self.n_void[index, sample_index] = is_void.sum(1)
            is_void = find_void(shuffled_growth[:, span], self.alpha)
            self.n_void_shuffled[index, sample_index] = is_void.sum(1)


def find_void(growth: torch.Tensor, alpha: float) -> torch.Tensor:
    """Whether the layers 1 … L-1 are void for each token, (L-1, tokens).

    `growth` is Δ at all layers, (L, tokens).
    """
    range_so_far = growth.cummax(0).values - growth.cummin(0).values
    return growth[1:] < alpha * range_so_far[:-1]


def _token_spans(sample: Sample) -> tuple[slice, slice, slice]:
    """The tokens of a sample by measure: all, those of the question, those of the answer."""
    if sample.kind == "text":
        return slice(None), slice(0), slice(0)
    n_context = len(sample.rows[sample.gold].context)
    return slice(None), slice(n_context), slice(n_context, None)
