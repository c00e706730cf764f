"""What no patch explains: a metric's pass that removes nothing and fits linear maps.

For a run of removed layers (s, e) with X = h_s and Y = h_e of the unpruned model, its patch M
leaves the share ‖Y - X (I + M)‖² / ‖Y - mean‖² unexplained. The runs of a unit are the runs of
removed layers once the unit is removed as well. The patches are those of
`lamina.selection.looped`, so that no sample is judged by a patch that was fitted on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import taps
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.repairs.methods.ghost import Ghost
from lamina.selection import looped
from lamina.selection.looped import Repairs

SEED = 0  # of the folds; one seed for all, since selectors share the sweeps of the unpruned model


def sweep_rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    pass_: str,
    token_budget: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys: column `residual`, one row per unit and sample.

    The residual of a sample is its part in the unexplained shares of all runs of the unit, times
    the number of samples. So the mean over samples is the sum of the shares.

    removed: The units that were removed before.
    token_budget: Token budget of a batch.
    """
    n_layers = len(layers_of(model))
    removed_with = {unit: [*removed, unit] for unit in units}
    candidates = [Candidate(frozenset(removed_units)) for removed_units in removed_with.values()]
    sequences = [sample.sequence() for sample in samples]
    repairs = looped.fit_loop_patches(model, [Source(sequences)], candidates, Ghost(), SEED)
    shares = unexplained_shares(model, sequences, repairs, token_budget)

    sweep_rows: list[dict[str, Any]] = []
    for unit, removed_units in removed_with.items():
        unit_runs = find_runs(removed_units, n_layers)
        for sample_index, sample in enumerate(samples):
            residual = sum(float(shares[run][sample_index]) for run in unit_runs)
            sweep_rows.append({"unit": unit, "sample": sample.index, "residual": residual})
    return sweep_rows


def unexplained_shares(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], repairs: Repairs, token_budget: int
) -> dict[Boundary, torch.Tensor]:
    """The samples' parts in the unexplained share of each run, times their number.

    Returns (samples,) in float64 for each run that has a patch.
    """
    boundaries = sorted(repairs.patches[0])
    errors = _UnexplainedErrors(boundaries, repairs, len(sequences), model.device)
    positions = [position for boundary in boundaries for position in boundary]
    taps.run_sequences(model, sequences, positions, errors.add_batch, token_budget)
    return errors.shares()


@dataclass(frozen=True)
class _StreamSums:
    """Sums over the tokens of a stream Y, for ‖Y - mean‖²."""

    total: torch.Tensor
    """Sum of y, (C,)."""
    squares: torch.Tensor
    """Sum of ‖y‖², scalar."""
    n_tokens: int

    def plus(self, stream: torch.Tensor) -> "_StreamSums":
        """With more tokens, (tokens, C)."""
        return _StreamSums(
            self.total + stream.sum(0),
            self.squares + stream.square().sum(),
            self.n_tokens + len(stream),
        )

    def squared_deviation(self) -> torch.Tensor:
        """‖Y - mean‖²."""
        return self.squares - self.total.square().sum() / self.n_tokens


class _UnexplainedErrors:
    """Adds up squared errors of patches by sample, and the spread of the streams they predict."""

    def __init__(
        self,
        boundaries: Sequence[Boundary],
        repairs: Repairs,
        n_samples: int,
        device: torch.device,
    ) -> None:
        self.repairs = repairs
        self.n_samples = n_samples
        self.squared_errors = {
            boundary: torch.zeros(n_samples, dtype=torch.float64, device=device)
            for boundary in boundaries
        }
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self.sums_at_end = {end: _StreamSums(zero, zero, 0) for _, end in boundaries}

    def add_batch(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Add a batch, each sample under the patches that score its fold.

        A batch is repeated if memory runs out. So the errors of a sample are overwritten, and sums
        are kept only when all of them are computed.
        """
        for fold in looped.FOLDS:
            self._set_errors(fold, batch, streams)
        new_sums = {
            end: sums.plus(streams[end][batch.real].double())
            for end, sums in self.sums_at_end.items()
        }
        self.sums_at_end.update(new_sums)

    def _set_errors(
        self, fold: int, batch: taps.Batch, streams: Mapping[float, torch.Tensor]
    ) -> None:
        """Set the errors of a batch's samples that are in a fold."""
        fold_of_sample = self.repairs.fold_of_sample
        fold_lines = [
            line
            for line, sample_index in enumerate(batch.samples)
            if fold_of_sample[sample_index] == fold
        ]
        sample_indices = [batch.samples[line] for line in fold_lines]
        is_padding = ~batch.real[fold_lines]
        for boundary, patch in self.repairs.patches[fold].items():
            start, end = boundary
            x = streams[start][fold_lines].double()
            y = streams[end][fold_lines].double()
            error = y - patch.to(x.device, x.dtype).repaired(x)
            squared_error = error.square().sum(-1).masked_fill(is_padding, 0).sum(-1)
            self.squared_errors[boundary][sample_indices] = squared_error

    def shares(self) -> dict[Boundary, torch.Tensor]:
        """Each sample's part in the unexplained share of each run, times the number of samples."""
        share_by_boundary: dict[Boundary, torch.Tensor] = {}
        for boundary, squared_errors in self.squared_errors.items():
            _, end = boundary
            squared_deviation = self.sums_at_end[end].squared_deviation()
            share_by_boundary[boundary] = self.n_samples * squared_errors / squared_deviation
        return share_by_boundary
