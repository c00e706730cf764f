"""Where accuracy ranks a unit and where every other metric does: confusion of places, over tasks."""

from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
from matplotlib.figure import Figure

from lamina.config.metrics import METRICS
from lamina.database import rows
from lamina.figures import style
from lamina.relevance.comparison import Agreement, comparisons

TITLE = "How metrics agree with accuracy"
PLACE = 25
TABLES = ("relevance", "sweeps", "calibrations", "models")
ABOUT = (
    "How often the unit in one place by accuracy relevance is in another by a second metric, over tasks, with "
    "correlation and misranked share and their intervals over samples."
)


def draw(connection: duckdb.DuckDBPyConnection) -> Figure:
    """One panel per model, kind of unit and metric; dark where many tasks have a unit at these two places."""
    data = found(connection)
    if not data:
        return style.empty("no calibration has both accuracy and another metric defined")
    figure, grid = style.panels(len(data), 2.6, 3.1, 4)
    for axes, (title, agreement) in zip(grid, data, strict=True):
        n = len(agreement.confusion)
        axes.imshow(agreement.confusion.T, origin="lower", cmap="Greys", extent=(0.5, n + 0.5, 0.5, n + 0.5), vmin=0)
        axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#0072B2", linewidth=0.9, linestyle="--")
        axes.set_title(f"{title}\n{words(agreement)}")
        axes.set(xlabel="place by accuracy", ylabel="place by the metric")
        for axis in "xy":
            style.whole_numbers(axes, axis)
    return figure


def data(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """The cells of all panels, each with its panel's correlation and misranked share and their intervals."""
    cells = []
    for title, agreement in found(connection):
        measured = {
            f"{name}{end}": number
            for name in ("spearman", "misranked")
            for end, number in zip(("", "_low", "_high"), getattr(agreement, name), strict=True)
        }
        for (by_accuracy, by_metric), count in np.ndenumerate(agreement.confusion):
            place = dict(panel=title, place_by_accuracy=by_accuracy + 1, place_by_metric=by_metric + 1, count=count)
            cells.append(place | measured | dict(n_tasks=agreement.n_tasks))
    return cells


@lru_cache(maxsize=1)  # its bootstrap is long, and picture, caption and numbers all ask for it
def found(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, Agreement]]:
    """Titles and agreements of all panels."""
    # With the scores among its tables, the figure also follows an edit to a metric, which it imports by name.
    measured = {
        row["metric"] for row in rows(connection, "SELECT DISTINCT metric FROM relevance WHERE score IS NOT NULL")
    }
    calibrations = rows(connection, "FROM calibrations")
    sweeps = connection.sql("FROM sweeps WHERE selector = 'base' AND removed = 0").to_arrow_table()
    return [
        (style.panel_title(connection, model, metric + ("" if kind == "layer" else f" ({kind})")), agreement)
        for metric in METRICS
        if metric in measured - {"accuracy"}
        for model, kind, _, agreement in comparisons(calibrations, sweeps, "accuracy", metric)
    ]


def words(agreement: Agreement) -> str:
    """Rank correlation and share of misranked units, with intervals."""
    (rho, low, high), (share, least, most) = agreement.spearman, agreement.misranked
    text = f"ρ = {rho:.2f} [{low:.2f}, {high:.2f}]\nmisranked {share:.0%} [{least:.0%}, {most:.0%}]"
    return text.replace("-", "−")


def caption(connection: duckdb.DuckDBPyConnection) -> str:
    """What the figure shows and from how many units and tasks; empty where there is nothing to show."""
    data = found(connection)
    if not data:
        return ""
    samples = [row["n_samples"] for row in rows(connection, "SELECT n_samples FROM calibrations")]
    most = max(agreement.n_tasks for _, agreement in data)
    return (
        "Place of a unit of the base model by accuracy relevance (1 = least relevant) against its place by another "
        f"metric, counted over {most} calibration{'s' if most > 1 else ''} at most ({style.counts(samples)} samples "
        "each), without the first and last two layers of eight or more. Dashed: agreement. ρ: Spearman's correlation "
        "over all units and calibrations, with 95 % of a bootstrap over samples in which both metrics see the same "
        "draws. Misranked: units in another place; in brackets what surely is (95 %) and what may be, given which "
        "scores differ beyond the noise of the samples."
    )
