"""How many samples each metric needs to rank layers.

It compares two calibrations of the same size.
"""

from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.options import metrics
from lamina.relevance.columns import Context, from_table
from lamina.relevance.stability import ranking_stability
from lamina_workflow.report import answers
from lamina_workflow.report.figures import style

TITLE = "How many samples a ranking takes"
POSITION = 26
TABLES = ("relevance", "sweeps", "calibrations", "models")
METRICS = (
    "accuracy",
    "margin",
    "perplexity",
    "cosine",
)  # two that need many samples, and two that need few
QUERIES = ("what_samples_say_of_layers",)
# Calibrations with the score of every layer on every sample, by metric.
_RANKINGS = """SELECT DISTINCT model, calibration, metric, chance_accuracy, choice_score
    FROM relevance JOIN calibrations USING (model, calibration)
    WHERE selector = 'base' AND removed = 0 AND component = 'layer' AND score IS NOT NULL
    ORDER BY model, calibration, metric"""


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """The points of all panels; `n_samples` is the size of each calibration of a pair."""
    # The tables include the scores, so that editing a metric also makes the figure stale: the
    # metric is loaded by name.
    rankings = answers.query_rows(connection, _RANKINGS)
    points: style.Rows = []
    for key, ranked in answers.group_rows(rankings, "model", "calibration").items():
        model, calibration = key
        context = Context.from_calibration(ranked[0])
        table = answers.answer_table(connection, QUERIES[0], model=model, calibration=calibration)
        for metric in (row["metric"] for row in ranked if row["metric"] in METRICS):
            samples = from_table(_select_measured(table, metric))
            for size, (median, ci_low, ci_high) in ranking_stability(samples, metric, context):
                points.append(
                    {
                        "model": model,
                        "calibration": calibration,
                        "metric": metric,
                        "n_samples": size,
                        "median": median,
                        "low": ci_low,
                        "high": ci_high,
                    }
                )
    return points


def _select_measured(table: pa.Table, metric: str) -> pa.Table:
    """The rows of the pass that measured a metric; there may be several passes."""
    column = table[metrics.METRICS[metric].columns[0]].cast("double")
    # In every pass, the model without a removal has a loss.
    is_base = pc.equal(table["unit"], "none")
    measured = pc.if_else(is_base, table["nll"], column)
    return table.filter(pc.is_valid(measured))


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and calibration, one line per metric."""
    groups = answers.group_rows(rows, "model", "calibration")
    figure, panels = style.make_panels(len(groups), 3.1, 2.6, 4)
    for axes, ((model, calibration), panel_rows) in zip(panels, groups.items(), strict=True):
        for metric_index, metric in enumerate(METRICS):
            points = [row for row in panel_rows if row["metric"] == metric]
            _draw_line(axes, metric_index, points)
        style.set_doubling_scale(axes, (row["n_samples"] for row in rows))
        axes.set_ylim(-0.25, 1.03)
        axes.set(xlabel="calibration samples", ylabel="rank correlation between subsets")
        axes.set_title(theme.format_title(model, calibration))
    drawn_metrics = {row["metric"] for row in rows}
    legend_entries = [
        (metric, _line_style(index))
        for index, metric in enumerate(METRICS)
        if metric in drawn_metrics
    ]
    style.add_legend(figure, legend_entries)
    return figure


def _draw_line(axes: Axes, metric_index: int, points: list[dict[str, Any]]) -> None:
    """Medians with bars, shifted sideways by metric so that bars do not hide each other."""
    shift = 1.05 ** (metric_index - 1.5)
    x = [point["n_samples"] * shift for point in points]
    medians = [point["median"] for point in points]
    lower = [point["median"] - point["low"] for point in points]
    upper = [point["high"] - point["median"] for point in points]
    axes.errorbar(
        x, medians, [lower, upper], linewidth=1.2, elinewidth=0.9, **_line_style(metric_index)
    )


def _line_style(metric_index: int) -> style.LineStyle:
    return {
        "color": style.COLOURS[metric_index],
        "marker": style.MARKERS[metric_index],
        "linestyle": style.DASHES[metric_index],
        "markersize": 4,
    }


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Spearman's correlation, over the base model's layers, between the relevance on two "
        "disjoint random subsets of a calibration, both of the size on the axis "
        f"({sample_counts} samples each). Points: medians over 200 pairs of subsets. Bars: the "
        "middle 95 % of the pairs. Bars are too short at the largest size, where every pair splits "
        "the same samples. Where a line still rises at its end, more samples would help. All "
        "samples together, twice the largest size, rank layers better than the end of the line."
    )
