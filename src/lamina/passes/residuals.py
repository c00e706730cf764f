"""What no patch could explain: a pass that removes nothing and fits a linear map for every run that a removal leaves.

For a run of removed layers (s, e) with X = h_s and Y = h_e of the unpruned model, its patch M leaves the share
‖Y - X (I + M)‖² / ‖Y - mean‖² unexplained. What is removed already and one unit more make the runs of a unit. The
patches are those of `lamina.search.looped`, so that a sample is never judged by a patch that was fitted on it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from transformers import PreTrainedModel

from lamina.config.recoveries import Ghost
from lamina.data.calibrations import Sample
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.models.surgery import removed_layers, runs
from lamina.search import looped
from lamina.search.looped import Repairs
from lamina.streams import taps
from lamina.streams.sources import Source
from lamina.sweep.candidates import Candidate

SEED = 0  # of the folds: sweeps of the unpruned model belong to all selectors


def rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    pass_: str,
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` (without its keys): `residual`, one per unit and sample.

    It is the sum over the runs of the sample's part in their unexplained shares, times the number of samples: the mean
    over samples is the sum of the shares. `tokens` bounds a batch.
    """
    gone = {unit: [*removed, unit] for unit in units}
    sequences = [sample.sequence() for sample in samples]
    candidates = [Candidate(frozenset(without)) for without in gone.values()]
    repairs = looped.fitted(model, [Source(sequences)], candidates, Ghost(), SEED)
    shares = unexplained(model, sequences, repairs, tokens)
    of_unit = {unit: runs(removed_layers(without), len(layers_of(model))) for unit, without in gone.items()}
    return [
        {"unit": unit, "sample": sample.index, "residual": sum(float(shares[run][number]) for run in found)}
        for unit, found in of_unit.items()
        for number, sample in enumerate(samples)
    ]


def unexplained(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], repairs: Repairs, tokens: int
) -> dict[Boundary, torch.Tensor]:
    """For each run with patches, the samples' parts in its unexplained share times their number, (samples,) float64."""
    wanted = sorted(repairs.patches[0])
    errors = {run: torch.zeros(len(sequences), dtype=torch.float64, device=model.device) for run in wanted}
    spread = {end: _Spread() for _, end in wanted}
    taps.run(model, sequences, [at for run in wanted for at in run], partial(_add, errors, spread, repairs), tokens)
    return {run: len(sequences) * error / spread[run[1]].square() for run, error in errors.items()}


class _Spread:
    """Sums over tokens of y (C,) and ‖y‖², for ‖Y - mean‖²."""

    def __init__(self) -> None:
        self.sum, self.squares, self.count = torch.zeros(()), torch.zeros(()), 0

    @classmethod
    def of(cls, y: torch.Tensor) -> Self:
        """Of tokens (tokens, C) in float64."""
        found = cls()
        found.sum, found.squares, found.count = y.sum(0), y.square().sum(), len(y)
        return found

    def add(self, other: "_Spread") -> None:
        """Take in the tokens of another."""
        self.sum, self.squares = self.sum + other.sum, self.squares + other.squares
        self.count += other.count

    def square(self) -> torch.Tensor:
        """‖Y - mean‖²."""
        return self.squares - self.sum.square().sum() / self.count


def _add(
    errors: Mapping[Boundary, torch.Tensor],
    spread: Mapping[int, _Spread],
    repairs: Repairs,
    batch: taps.Batch,
    streams: Mapping[int, torch.Tensor],
) -> None:
    """Add a batch's squared errors, sample by sample, each under the patch that scores its fold."""
    folds = [repairs.fold[number] for number in batch.samples]
    for scored, patches in enumerate(repairs.patches):
        lines = [line for line, fold in enumerate(folds) if fold == scored]
        numbers = [batch.samples[line] for line in lines]
        real = batch.real[lines]
        for (start, end), patch in patches.items():
            x = streams[start][lines].double()
            left = streams[end][lines].double() - x - x @ patch.operator.to(x)
            errors[start, end][numbers] = left.square().sum(-1).masked_fill(~real, 0).sum(-1)
    # Errors may be put down twice where memory runs out, and sums are made before any is added to.
    for sums, more in [(spread[end], _Spread.of(streams[end][batch.real].double())) for end in spread]:
        sums.add(more)
