"""Measures errors of the repaired stream, token by token.

Absolute errors, and standard errors, do not follow from the moments of a fit, so they need a second
pass. It runs over the held-out samples and half as many others, and costs three tenths of the first
pass.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.splitting import index_documents
from lamina.engine import taps
from lamina.engine.batches import TOKENS, reserve_sums
from lamina.engine.moments import BATCH, iterate_token_rows
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary, Patch
from lamina.models.structure import text_config
from lamina.relevance.statistics import bootstrap_weights
from lamina.repairs.samples import WeightedSequence, split_samples

HELDOUT_GROUP = 0
FIT_GROUP = 1


class TokenErrors(TypedDict):
    """Columns of table `patches`: errors of the pruned model's stream, and of the repaired one.

    Standard errors are those of a bootstrap over held-out documents, None for a single document.
    """

    n_heldout: int
    """Number of distinct held-out documents."""
    heldout_error_before_stderr: float | None
    heldout_error_stderr: float | None
    mae_before: float
    """Mean absolute error on the held-out samples."""
    mae_after: float
    fit_mae_before: float
    """Mean absolute error on the fit samples."""
    fit_mae_after: float
    channel_mae_before: list[float]
    channel_mae_after: list[float]


@dataclass(frozen=True)
class _ErrorSums:
    """Weighted sums at one boundary, in float64. An error is Y minus the stream there.

    Before the repair that stream is X, the stream before the run; after it, the repaired X.
    """

    token_weight: torch.Tensor
    """Sum of the weights of a group's tokens, (groups,)."""
    absolute_before: torch.Tensor
    """Absolute errors, summed over the tokens of a group, (groups, C)."""
    absolute_after: torch.Tensor
    squared_before: torch.Tensor
    """Squared errors, summed over channels and over the tokens of a sample, (samples,)."""
    squared_after: torch.Tensor
    squared_output: torch.Tensor
    """Squares of Y, summed in the same way, (samples,)."""

    @classmethod
    def zeros(cls, n_samples: int, channels: int, device: torch.device) -> "_ErrorSums":
        """Sums over no tokens."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            token_weight=zeros(2),
            absolute_before=zeros(2, channels),
            absolute_after=zeros(2, channels),
            squared_before=zeros(n_samples),
            squared_after=zeros(n_samples),
            squared_output=zeros(n_samples),
        )


def measure_patches(
    model: PreTrainedModel,
    sources: Sequence[Source],
    patches: Mapping[Boundary, Patch],
    seed: int,
    token_budget: int = TOKENS,
    run: taps.Run = taps.run_sequences,
) -> dict[Boundary, TokenErrors]:
    """The errors of each patch's stream, on the held-out samples and some of the others.

    patches: Patches that were fitted without the held-out samples of the same `seed`.
    token_budget: Token budget of a batch.
    run: The pass that gives the streams.
    """
    heldout_samples, fit_samples = _draw_samples(sources, seed)
    stream_errors = _StreamErrors(model, heldout_samples, fit_samples, patches)
    positions = [position for boundary in patches for position in boundary]
    run(
        model,
        stream_errors.sequences,
        positions,
        stream_errors.add_batch,
        min(token_budget, stream_errors.chunk_rows),
        (),
    )
    return stream_errors.columns()


def _draw_samples(
    sources: Sequence[Source], seed: int
) -> tuple[list[WeightedSequence], list[WeightedSequence]]:
    """The held-out samples of all sources, and for each source half as many of its others."""
    heldout_samples: list[WeightedSequence] = []
    fit_samples: list[WeightedSequence] = []
    for samples in split_samples(sources, seed):
        heldout_samples += samples.heldout
        n_others = min(max(1, len(samples.heldout) // 2), len(samples.fit))
        fit_samples += random.Random(seed).sample(samples.fit, n_others)
    return heldout_samples, fit_samples


class _StreamErrors:
    """Adds up the errors of patches over the batches of a pass. Held-out samples come first."""

    def __init__(
        self,
        model: PreTrainedModel,
        heldout_samples: Sequence[WeightedSequence],
        fit_samples: Sequence[WeightedSequence],
        patches: Mapping[Boundary, Patch],
    ) -> None:
        samples = [*heldout_samples, *fit_samples]
        self.sequences = [sample.token_ids for sample in samples]
        self.n_heldout = len(heldout_samples)
        self.patches = patches
        self.channels = int(text_config(model).hidden_size)
        self.device = model.device
        self.sample_weights = torch.tensor(
            [sample.weight for sample in samples], dtype=torch.float64, device=model.device
        )
        self.sums = {
            boundary: _ErrorSums.zeros(len(samples), self.channels, model.device)
            for boundary in patches
        }

    @property
    def chunk_rows(self) -> int:
        """Tokens whose streams are in float64 at a time."""
        return BATCH // self.channels

    def add_batch(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Add the errors of a batch; a `lamina.engine.taps.Consumer`."""
        # Memory must run out before anything is added, so reserve it: X, Y, both errors, products,
        # copies.
        n_rows = min(batch.real.numel(), max(1, self.chunk_rows))
        reserve_sums(n_rows, self.channels, count=8, device=self.device)

        sample_indices = torch.tensor(batch.samples, device=self.device)
        index_of_token = sample_indices[:, None].expand(batch.real.shape)
        for boundary, patch in self.patches.items():
            start, end = boundary
            # Convert one patch at a time: in float64, all of them take as much memory as the sums
            # of their fit.
            float64_patch = patch.to(self.device, torch.float64)
            chunks = iterate_token_rows(
                streams[start], streams[end], index_of_token, is_wanted=batch.real
            )
            for x, y, float_indices in chunks:
                self._add_tokens(self.sums[boundary], float64_patch, x, y, float_indices.long())

    def _add_tokens(
        self,
        sums: _ErrorSums,
        patch: Patch,
        x: torch.Tensor,
        y: torch.Tensor,
        sample_indices: torch.Tensor,
    ) -> None:
        """Add some tokens: X and Y (tokens, C), and the sample of each (tokens,)."""
        token_groups = (sample_indices >= self.n_heldout).long()
        token_weights = self.sample_weights[sample_indices]
        error_before = y - x
        error_after = y - patch.repaired(x)

        sums.token_weight.index_add_(0, token_groups, token_weights)
        sums.absolute_before.index_add_(
            0, token_groups, token_weights[:, None] * error_before.abs()
        )
        sums.absolute_after.index_add_(0, token_groups, token_weights[:, None] * error_after.abs())
        sums.squared_before.index_add_(
            0, sample_indices, token_weights * error_before.square().sum(1)
        )
        sums.squared_after.index_add_(
            0, sample_indices, token_weights * error_after.square().sum(1)
        )
        sums.squared_output.index_add_(0, sample_indices, token_weights * y.square().sum(1))

    def columns(self) -> dict[Boundary, TokenErrors]:
        """The errors at each boundary over all batches."""
        (document_of_sample,) = index_documents([self.sequences[: self.n_heldout]])
        return {
            boundary: _columns(sums, document_of_sample) for boundary, sums in self.sums.items()
        }


def _columns(sums: _ErrorSums, document_of_sample: Sequence[int]) -> TokenErrors:
    """The errors at one boundary, from the document of every held-out sample."""
    mean_before = (sums.absolute_before / sums.token_weight[:, None]).cpu()
    mean_after = (sums.absolute_after / sums.token_weight[:, None]).cpu()
    stderr_before, stderr_after = _bootstrap_stderrs(sums, document_of_sample)
    return {
        "n_heldout": 1 + max(document_of_sample),
        "heldout_error_before_stderr": stderr_before,
        "heldout_error_stderr": stderr_after,
        "mae_before": float(mean_before[HELDOUT_GROUP].mean()),
        "mae_after": float(mean_after[HELDOUT_GROUP].mean()),
        "fit_mae_before": float(mean_before[FIT_GROUP].mean()),
        "fit_mae_after": float(mean_after[FIT_GROUP].mean()),
        "channel_mae_before": mean_before[HELDOUT_GROUP].tolist(),
        "channel_mae_after": mean_after[HELDOUT_GROUP].tolist(),
    }


def _bootstrap_stderrs(
    sums: _ErrorSums, document_of_sample: Sequence[int]
) -> tuple[float | None, float | None]:
    """Standard errors of the held-out errors ‖Y - Ŷ‖ / ‖Y‖, before and after the repair."""
    n_heldout_samples = len(document_of_sample)
    n_documents = 1 + max(document_of_sample)
    if n_documents == 1:
        return None, None

    squared_sums = torch.stack([sums.squared_before, sums.squared_after, sums.squared_output])
    squares_by_document = np.zeros((n_documents, 3))
    squares_by_sample = squared_sums[:, :n_heldout_samples].cpu().numpy().T
    np.add.at(squares_by_document, list(document_of_sample), squares_by_sample)

    draws = np.sqrt(bootstrap_weights(n_documents, seed=0)[1:] @ squares_by_document)
    output_norms = np.maximum(draws[:, 2:], np.finfo(float).tiny)
    relative_errors = draws[:, :2] / output_norms
    before, after = relative_errors.std(axis=0, ddof=1).tolist()
    return before, after
