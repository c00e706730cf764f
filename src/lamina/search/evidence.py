"""What a strategy decides on, read from the tables of relevance, sweeps and activations."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.relevance.accuracy import hits
from lamina.relevance.columns import from_table
from lamina.search.plans import Step
from lamina.tables import store


def read_step(
    relevance: str | Path, sweep: str | Path, metric: str, score: str, calibration: str
) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and what is known of the current model.

    The base model at chance has no accuracy relevance, so a plan made from it would be noise: it is refused.
    """
    rows = [row for row in store.read(relevance).to_pylist() if row["metric"] == metric]
    if not rows:
        raise LaminaError(f"{relevance} holds no scores of metric '{metric}': the sweep before it measured none.")
    if any(row["rank"] is None for row in rows):
        remedy = (
            f"Give calibration '{calibration}' more samples or few-shot examples, choose a task that the model can do, "
            "or a selector whose metric needs no accuracy (perplexity, cosine, angular)."
        )
        return f"{rows[0]['reason']}. {remedy}", Step()
    ranked = [(row["unit"], row["score"]) for row in sorted(rows, key=lambda row: row["rank"])]
    columns = from_table(store.read(sweep))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pass without removals has no accuracies
        means = np.nanmean(hits(columns, score), axis=1)
    accuracies = {unit: float(mean) for unit, mean in zip(columns.units, means[1:], strict=True) if mean == mean}
    return None, Step(ranked, float(means[0]), accuracies)


def read_angles(activations: str | Path, metric: str) -> dict[tuple[int, int], float]:
    """Distance of boundary `start + span` from boundary `start`, by (start, span)."""
    column = "angular_last" if metric == "angular" else "cosine"
    data = store.read(activations, ["layer", "span", column])
    data = data.filter(pc.field("span") > 0)
    return {
        (layer, span): distance
        for layer, span, distance in zip(*(data[name].to_pylist() for name in ("layer", "span", column)), strict=True)
    }
