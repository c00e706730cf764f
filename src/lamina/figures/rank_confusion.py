"""Where accuracy ranks a unit and where every other metric does: confusion of places, over tasks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lamina.figures import style

TITLE = "How metrics agree with accuracy"
PLACE = 25
TABLES = ("relevance", "agreements", "models")
ABOUT = (
    "How often the unit in one place by accuracy relevance is in another by a second metric, over tasks, with "
    "correlation and misranked share and their intervals over samples."
)

# Places among the units that table `agreements` compares: those of the middle, `edge` at either end left out.
EMPTY = "no calibration has both accuracy and another metric defined"
QUERY = """
WITH told AS (
    SELECT model, component, metric, any_value(n_units) AS n_units, any_value(n_calibrations) AS n_calibrations,
        any_value(n_samples) AS n_samples, any_value(calibrations) AS calibrations,
        max(value) FILTER (statistic = 'spearman') AS spearman,
        max(ci_low) FILTER (statistic = 'spearman') AS spearman_low,
        max(ci_high) FILTER (statistic = 'spearman') AS spearman_high,
        max(value) FILTER (statistic = 'misranked') AS misranked,
        max(ci_low) FILTER (statistic = 'misranked') AS misranked_low,
        max(ci_high) FILTER (statistic = 'misranked') AS misranked_high
    FROM agreements WHERE statistic <> 'reliability' GROUP BY ALL
),
scored AS (
    SELECT model, component, calibration, metric, unit, rank,
        row_number() OVER (every ORDER BY layer) AS depth, count(*) OVER every AS n_all
    FROM relevance WHERE selector = 'base' AND removed = 0
    WINDOW every AS (PARTITION BY model, component, calibration, metric)
),
placed AS (
    SELECT t.*, s.unit, t.metric = s.metric AS by_metric,
        row_number() OVER (PARTITION BY t.model, t.component, t.metric, calibration, s.metric ORDER BY rank) AS place
    FROM (SELECT *, unnest(string_split(calibrations, ', ')) AS calibration FROM told) AS t
    JOIN scored AS s USING (model, component, calibration)
    WHERE s.metric IN ('accuracy', t.metric)
        AND s.depth > (n_all - n_units) / 2 AND s.depth <= (n_all + n_units) / 2
)
FROM (
    SELECT a.model, a.component, a.metric, a.place AS place_by_accuracy, b.place AS place_by_metric, count(*) AS count,
        a.n_units, a.n_calibrations, a.n_samples, a.spearman, a.spearman_low, a.spearman_high, a.misranked,
        a.misranked_low, a.misranked_high
    FROM placed AS a JOIN placed AS b USING (model, component, metric, calibration, unit)
    WHERE NOT a.by_metric AND b.by_metric GROUP BY ALL
)
ORDER BY model, component <> 'layer', component, metric, place_by_accuracy, place_by_metric
"""


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, kind of unit and metric; dark where many tasks have a unit at these two places."""
    groups = style.grouped(data, "model", "component", "metric")
    figure, grid = style.panels(len(groups), 2.6, 3.1, 4)
    for axes, ((model, kind, metric), cells) in zip(grid, groups.items(), strict=True):
        n = cells[0]["n_units"]
        confusion = np.zeros((n, n), dtype=int)
        for cell in cells:
            confusion[cell["place_by_accuracy"] - 1, cell["place_by_metric"] - 1] = cell["count"]
        axes.imshow(
            confusion.T, origin="lower", cmap="Greys", interpolation="none", extent=(0.5, n + 0.5, 0.5, n + 0.5), vmin=0
        )
        axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#0072B2", linewidth=0.9, linestyle="--")
        name = metric if kind == "layer" else f"{metric} ({kind})"
        axes.set_title(f"{theme.title(model, name)}\n{words(cells[0])}")
        axes.set(xlabel="place by accuracy", ylabel="place by the metric")
        for axis in "xy":
            style.whole_numbers(axes, axis)
    return figure


def words(told: Mapping[str, Any]) -> str:
    """Rank correlation and share of misranked units, with intervals."""
    rho = "ρ = {spearman:.2f} [{spearman_low:.2f}, {spearman_high:.2f}]"
    share = "misranked {misranked:.0%} [{misranked_low:.0%}, {misranked_high:.0%}]"
    return f"{rho}\n{share}".format_map(told).replace("-", "−")


def caption(data: style.Rows) -> str:
    """What the figure shows and from how many units and tasks."""
    most = max(row["n_calibrations"] for row in data)
    samples = style.counts([row["n_samples"] for row in data])
    return (
        "Place of a unit of the base model by accuracy relevance (1 = least relevant) against its place by another "
        f"metric, counted over {most} calibration{'s' if most > 1 else ''} at most ({samples} of all "
        "together), without the first and last two layers of eight or more. Dashed: agreement. ρ: Spearman's "
        "correlation over all units and calibrations, with 95 % of a bootstrap over samples in which both metrics see "
        "the same draws. Misranked: units in another place; in brackets what surely is (95 %) and what may be, given "
        "which scores differ beyond the noise of the samples."
    )
