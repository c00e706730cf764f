"""How similarly accuracy and other metrics order the units of each task, with intervals."""

import math
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "How metrics agree with accuracy"
POSITION = 25
TABLES = ("relevance", "models")
QUERIES = ("how_metrics_agree_on_each_task",)


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and kind of unit, a row per metric, a mark per calibration."""
    groups = group_rows(rows, "model", "component")
    marker_styles = style.assign_markers(sorted({row["calibration"] for row in rows}), 5)
    most_metrics = style.count_most(groups.values(), itemgetter("metric"))
    height = 0.9 + most_metrics * (0.3 + 0.1 * len(marker_styles))
    figure, panels = style.make_panels(len(groups), 4.6, height, 2)
    for axes, ((model, component), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_panel(axes, panel_rows, marker_styles)
        axes.set_title(theme.format_title(model, f"every {component}"))
    style.add_legend(figure, marker_styles.items())
    return figure


def _draw_panel(axes: Axes, rows: style.Rows, marker_styles: dict[str, style.LineStyle]) -> None:
    metrics = group_rows(rows, "metric")
    calibrations = list(marker_styles)
    for y, metric_rows in enumerate(metrics.values()):
        for row in metric_rows:
            offset = (calibrations.index(row["calibration"]) + 0.5) / len(calibrations) - 0.5
            _draw_correlation(axes, row, y + 0.7 * offset, marker_styles[row["calibration"]])
        mean = math.fsum(row["spearman"] for row in metric_rows) / len(metric_rows)
        text = style.with_minus_signs(f"{mean:.2f}")
        right_of_panel = ("axes fraction", "data")
        axes.annotate(text, (1.02, y), xycoords=right_of_panel, va="center", fontsize=8)
    axes.axvline(0, color=style.NEUTRAL, linewidth=0.8)
    axes.set(
        xlim=(-1.03, 1.03),
        xticks=[-1, -0.5, 0, 0.5, 1],
        xlabel="rank correlation (1 = the same order)",
    )
    style.set_row_names(axes, [metric for (metric,) in metrics])


def _draw_correlation(axes: Axes, row: dict[str, Any], y: float, marker: style.LineStyle) -> None:
    """The correlation on one calibration, with its interval if it is known."""
    correlation = row["spearman"]
    ci_low = row["ci_low"]
    ci_high = row["ci_high"]
    ends = None if ci_low is None else [[correlation - ci_low], [ci_high - correlation]]
    axes.errorbar(correlation, y, xerr=ends, elinewidth=0.9, **marker)
    interval = "" if ci_low is None else f" [{ci_low:.2f}, {ci_high:.2f}]"
    text = (
        f"{row['metric']} on {row['calibration']}: {correlation:.2f}{interval}, {row['n_units']} "
        f"units, n = {row['n_samples']}"
    )
    style.add_hints(axes, [(correlation, y, style.with_minus_signs(text))])


def write_caption(rows: style.Rows) -> str:
    unit_counts = style.format_counts(row["n_units"] for row in rows)
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Spearman's correlation, within a task, between accuracy relevance and another metric over "
        f"the units of the base model ({unit_counts} units, {sample_counts} calibration samples "
        "per task). A selector uses only this order. Bars: 95 % intervals that treat the units as "
        "a random sample. Right: mean over tasks. Sampling noise lowers a correlation."
    )
