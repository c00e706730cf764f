"""The numbers on which a strategy decides, read from the tables of sweeps and activations."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from lamina.config.metrics import METRICS
from lamina.errors import LaminaError
from lamina.relevance.columns import Context, from_table, hits
from lamina.relevance.score import ranking, was_measured
from lamina.selection.plans import Step
from lamina.store import parquet as store


def read_step(sweep: str | Path, metric: str, context: Context, calibration: str) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and the evidence about the current model.

    Units are ranked by the selector's own metric; the unit that a budget chose comes first. A base model at chance has
    no accuracy relevance. A plan made from it would be noise, so it is refused.
    """
    table = store.read(sweep)
    columns = from_table(table) if table.num_rows else None
    if columns is None or not was_measured(columns, metric, context):
        raise LaminaError(f"{sweep} holds no scores of metric '{metric}': the sweep before it measured none.")
    order = ranking(columns, metric, context)
    if order.ranks is None:
        return f"{order.reason}. {METRICS[metric].remedy.format(calibration=calibration)}", Step()
    scores = [float(score) if np.isfinite(score) else None for score in order.draws[0]]
    entries = sorted(
        zip(columns.units, scores, order.ranks, strict=True),
        key=lambda entry: (entry[0] != columns.chosen, entry[2]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pass without removals has no accuracies
        means = np.nanmean(hits(columns.values, context.score), axis=1)
    current = float(means[0]) if np.isfinite(means[0]) else None
    accuracies = {unit: float(mean) for unit, mean in zip(columns.units, means[1:], strict=True) if mean == mean}
    ranked = [(unit, score) for unit, score, _ in entries]
    return None, Step(ranked, current, accuracies)


def read_angles(activations: str | Path, metric: str) -> dict[tuple[int, int], float]:
    """Distance of boundary `start + span` from boundary `start`, by (start, span)."""
    (column,) = METRICS[metric].columns
    data = store.read(activations, ["layer", "span", column])
    data = data.filter(pc.field("span") > 0)
    return {
        (layer, span): distance
        for layer, span, distance in zip(*(data[name].to_pylist() for name in ("layer", "span", column)), strict=True)
    }
