"""How well a linear map stands in for a run of layers: its error against the number of samples and against the ridge.

A map has C² numbers. Samples that it was not fitted on show whether a calibration is large enough, and how much ridge
makes up for a small one. Moments add up: one pass gives those of all nested calibrations, and one eigendecomposition
of each serves every ridge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.configuration import Diagnosis
from lamina.config.entry import option
from lamina.data.splitting import parts
from lamina.errors import LaminaError
from lamina.repair.methods.ghost import GRID, Ghost, Regression

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample
    from lamina.engine import taps
    from lamina.engine.moments import Moments
    from lamina.models.boundary import Boundary


class Fit(Diagnosis):
    """How well one linear map stands in for each run of layers, against the number of samples and the ridge.

    Every run of `span` layers gets the map of repair `ghost`, fitted on 8, 16, 32 … samples and on all that are not
    held out, with every ridge of the grid. Each draw holds out another fifth and adds the samples in another order.
    """

    kind: Literal["fit"] = "fit"
    span: int = option("Layers of a run.", 1, ge=1)
    draws: int = option(
        "Draws of the held-out samples and of the order of the others; two or more give intervals.", 5, ge=1, le=10
    )


SMALLEST = 8
MEMORY = 8 << 30
# Student's t of a two-sided 95 % interval, by degrees of freedom from 1.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


_Key = tuple[str, int, float | None]  # measure, number of documents fitted on, ridge


def diagnose(model: PreTrainedModel, samples: Sequence[Sample], options: Fit, tokens: int) -> list[dict[str, Any]]:
    """Rows of table `diagnoses`, `layer` being the first of a run and `n_samples` the number of
    different documents fitted on, each with all its copies.

    `unseen_error`, `fitted_error` : ‖D - X M‖ / ‖Y‖ on the held-out documents and on the fitted ones; `point` is λ
        relative to the mean eigenvalue.
    `validated_error` : on the held-out documents; each half of them uses the λ that is best on the other half.

    The value is the mean over draws with the interval of that mean, and `control` the error with nothing in the place
    of the run. Draws share documents, so intervals of large sizes are too narrow.

    Raises LaminaError if a run is longer than the model, or there are fewer than three documents.
    """
    from lamina.models.structure import layers_of

    depth, sequences = len(layers_of(model)), [sample.sequence() for sample in samples]
    if options.span > depth:
        raise LaminaError(
            f"diagnosis fit: span {options.span} is longer than the model, which has {depth} layers. Write less."
        )
    by_measure: dict[tuple[int, _Key], list[tuple[float, float]]] = defaultdict(list)
    for draw in range(options.draws):
        groups, sizes = _groups(sequences, draw)
        for (layer, _), sums in _collect(model, sequences, options.span, groups, tokens):
            for key, error, before in _errors(sums, sizes):
                by_measure[layer, key].append((error, before))
    return [_row(layer, key, errors) for (layer, key), errors in by_measure.items()]


def _groups(sequences: Sequence[Sequence[int]], draw: int) -> tuple[list[int], list[int]]:
    """The group of every sample, and the numbers of documents up to groups 2, 3 …; groups 0 and 1 are held out."""
    from lamina.engine.sources import HELDOUT_SHARE

    sizes: list[int] = []

    def drawn(count: int) -> list[int]:
        held = max(2, round(count * HELDOUT_SHARE))
        doubling = [SMALLEST << power for power in range(30) if SMALLEST << power < count - held]
        sizes.extend([*doubling, count - held])
        return [held - held // 2, held // 2, *(after - before for before, after in pairwise([0, *sizes]))]

    purpose = "diagnosis fit fits on some documents, and chooses and checks a ridge on others"
    (groups,) = parts([sequences], drawn, draw, 3, purpose)
    return groups, sizes


def _collect(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], span: int, groups: Sequence[int], tokens: int
) -> Iterator[tuple[Boundary, list[Moments]]]:
    """Moments of every group at every run; one pass takes as many runs as fit into `MEMORY` bytes."""
    import torch

    from lamina.engine import moments, taps
    from lamina.models.structure import layers_of, text_config

    channels, number = int(text_config(model).hidden_size), torch.tensor(groups, device=model.device)
    runs = [(start, start + span) for start in range(len(layers_of(model)) - span + 1)]
    per_pass = max(1, MEMORY // (2 * 8 * channels**2 * (max(groups) + 1)))
    for first in range(0, len(runs), per_pass):
        part = runs[first : first + per_pass]
        totals = [moments.empty(part, channels, model.device) for _ in range(max(groups) + 1)]

        def add(
            batch: taps.Batch, streams: Mapping[int, torch.Tensor], totals: list[dict[Boundary, Moments]] = totals
        ) -> None:
            for group, sums in enumerate(totals):
                moments.accumulate(sums, streams, {}, batch.real & (number[batch.samples] == group)[:, None], 1.0)

        taps.run(model, sequences, [place for run in part for place in run], add, tokens)
        for run in part:
            yield run, [sums.pop(run) for sums in totals]


def _errors(sums: Sequence[Moments], sizes: Sequence[int]) -> Iterator[tuple[_Key, float, float]]:
    """Relative errors ‖D - X M‖ / ‖Y‖ of one run and draw at every size, and those of M = 0, from the moments of both
    held-out halves and of what each size adds.
    """
    import numpy as np

    from lamina.engine.moments import Moments

    halves = sums[:2]
    unseen = halves[0].plus(halves[1])
    norm, before = unseen.output_norm(), float(unseen.dd.sqrt())
    for size, seen in zip(sizes, accumulate(sums[2:], Moments.plus), strict=True):
        regression = Regression(seen, Ghost())
        # Squares, (halves, ridges). Those of both halves add up, and each half chooses the ridge of the other.
        squares = np.array([regression.errors(half, GRID) for half in halves]) ** 2
        own, own_norm = regression.errors(seen, GRID), seen.output_norm()
        for ridge, error, fitted in zip(GRID, np.sqrt(squares.sum(0)), own, strict=True):
            yield ("unseen_error", size, ridge), error / norm, before / norm
            yield ("fitted_error", size, ridge), fitted / own_norm, float(seen.dd.sqrt()) / own_norm
        chosen = squares[[0, 1], squares.argmin(1)[::-1]]
        yield ("validated_error", size, None), np.sqrt(chosen.sum()) / norm, before / norm


def _row(layer: int, key: _Key, errors: Sequence[tuple[float, float]]) -> dict[str, Any]:
    import numpy as np

    values, before = np.array(errors).T
    mean = float(values.mean())
    row = {"layer": layer, "measure": key[0], "point": key[2], "n_samples": key[1], "value": mean}
    if len(values) > 1:
        reach = STUDENT[len(values) - 2] * float(values.std(ddof=1)) / len(values) ** 0.5
        row |= {"ci_low": max(0.0, mean - reach), "ci_high": mean + reach}
    return row | {"control": float(before.mean())}
