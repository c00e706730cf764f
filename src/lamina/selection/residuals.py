"""What no patch explains: a pass that removes nothing and fits a linear map for every run that a removal would leave.

For a run of removed layers (s, e) with X = h_s and Y = h_e of the unpruned model, its patch M leaves the share
‖Y - X (I + M)‖² / ‖Y - mean‖² unexplained. The runs of a unit are the runs of removed layers once the
unit is removed as well. The patches are those of `lamina.selection.looped`, so that a sample is never judged by a patch
that was fitted on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import taps
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.models.surgery import runs
from lamina.repair.methods.ghost import Ghost
from lamina.selection import looped
from lamina.selection.looped import Repairs

_Spread = tuple[torch.Tensor, torch.Tensor, int]
"""Sums over tokens of y (C,) and of ‖y‖², and their number, for ‖Y - mean‖²."""

SEED = 0  # of the folds; one seed for all, since selectors share the sweeps of the unpruned model


def rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    pass_: str,
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` (without its keys): `residual`, one per unit and sample.

    For each sample it is its part in the unexplained shares of all runs, times the number of samples. So the mean over
    samples is the sum of the shares. `tokens` bounds a batch.
    """
    gone = {unit: [*removed, unit] for unit in units}
    sequences = [sample.sequence() for sample in samples]
    candidates = [Candidate(frozenset(without)) for without in gone.values()]
    repairs = looped.fitted(model, [Source(sequences)], candidates, Ghost(), SEED)
    shares = unexplained(model, sequences, repairs, tokens)
    of_unit = {unit: runs(without, len(layers_of(model))) for unit, without in gone.items()}
    return [
        {
            "unit": unit,
            "sample": sample.index,
            "residual": sum(float(shares[run][number]) for run in boundaries),
        }
        for unit, boundaries in of_unit.items()
        for number, sample in enumerate(samples)
    ]


def unexplained(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], repairs: Repairs, tokens: int
) -> dict[Boundary, torch.Tensor]:
    """For each run with patches, the samples' parts in its unexplained share times their number, (samples,) float64."""
    wanted = sorted(repairs.patches[0])
    errors = {
        run: torch.zeros(len(sequences), dtype=torch.float64, device=model.device) for run in wanted
    }
    nothing = torch.zeros((), dtype=torch.float64, device=model.device)
    spread: dict[float, _Spread] = {end: (nothing, nothing, 0) for _, end in wanted}

    def add(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        # Each sample under the patch that scores its fold.
        folds = [repairs.fold[number] for number in batch.samples]
        for scored, patches in enumerate(repairs.patches):
            lines = [line for line, fold in enumerate(folds) if fold == scored]
            numbers = [batch.samples[line] for line in lines]
            real = batch.real[lines]
            for (start, end), patch in patches.items():
                x = streams[start][lines].double()
                left = streams[end][lines].double() - patch.to(x.device, x.dtype).repaired(x)
                errors[start, end][numbers] = left.square().sum(-1).masked_fill(~real, 0).sum(-1)
        # A batch is repeated if memory runs out: errors are overwritten, and sums are added once all are computed.
        after = {}
        for end, (total, square, count) in spread.items():
            y = streams[end][batch.real].double()
            after[end] = total + y.sum(0), square + y.square().sum(), count + len(y)
        spread.update(after)

    taps.run(model, sequences, [at for run in wanted for at in run], add, tokens)
    squares = {
        end: square - total.square().sum() / count for end, (total, square, count) in spread.items()
    }
    return {run: len(sequences) * error / squares[run[1]] for run, error in errors.items()}
