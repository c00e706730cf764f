"""Cosine relevance against the accuracy that removals cost, by layer and task.

[arXiv 2605.14075, figure 3 A]
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "Cosine against what a removal costs"
POSITION = 23
FOLDED = True
TABLES = ("relevance", "models")
QUERIES = ("what_cosine_says_of_removals",)
ZERO_STYLE: style.LineStyle = {"color": style.NEUTRAL, "linewidth": 0.8}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and kind of unit, one point per unit and calibration."""
    groups = group_rows(rows, "model", "component")
    marker_styles = style.assign_markers(sorted({row["calibration"] for row in rows}), 4)
    figure, panels = style.make_panels(len(groups), 4.6, 3.6, 2)
    for axes, ((model, component), panel_rows) in zip(panels, groups.items(), strict=True):
        axes.axhline(0, **ZERO_STYLE)
        for row in panel_rows:
            _draw_unit(axes, row, marker_styles[row["calibration"]])
        axes.set(
            xlabel="cosine relevance (1 − cos over the unit)",
            ylabel="accuracy lost (share above chance)",
        )
        title = f"every {component}{_format_correlation(panel_rows[0])}"
        axes.set_title(theme.format_title(model, title))
    style.add_legend(figure, marker_styles.items())
    return figure


def _draw_unit(axes: Axes, row: dict[str, Any], marker: style.LineStyle) -> None:
    """A point with the 95 % intervals of both scores, where they are known."""
    ends: dict[str, Any] = {}
    for axis, metric in (("xerr", "cosine"), ("yerr", "accuracy")):
        score = row[metric]
        ci_low = row[f"{metric}_low"]
        if ci_low is not None:
            ends[axis] = [[score - ci_low], [row[f"{metric}_high"] - score]]
    axes.errorbar(row["cosine"], row["accuracy"], elinewidth=0.6, **ends, **marker)
    text = (
        f"{row['calibration']}, layer {row['layer']}: accuracy lost "
        f"{_format_score(row, 'accuracy')}, cosine {_format_score(row, 'cosine')}"
    )
    style.add_hints(axes, [(row["cosine"], row["accuracy"], style.with_minus_signs(text))])


def _format_score(row: dict[str, Any], metric: str) -> str:
    interval = ""
    if row[f"{metric}_low"] is not None:
        interval = f" [{row[f'{metric}_low']:.3f}, {row[f'{metric}_high']:.3f}]"
    return f"{row[metric]:.3f}{interval}, n = {row[f'{metric}_samples']}"


def _format_correlation(row: dict[str, Any]) -> str:
    """The correlation of a panel with its interval; empty if all scores of a metric are equal."""
    if row["pearson_low"] is None:
        return ""
    interval = f"[{row['pearson_low']:.2f}, {row['pearson_high']:.2f}]"
    return style.with_minus_signs(f": r = {row['pearson']:.2f} {interval}")


def write_caption(rows: style.Rows) -> str:
    points = style.format_counts(row["n_points"] for row in rows).removeprefix("n = ")
    sample_counts = style.format_counts(row["accuracy_samples"] for row in rows)
    return (
        "Each point is a unit of the base model on one calibration: the share of the accuracy "
        "above chance that its removal loses, against how far it turns the residual stream "
        f"({points} points per panel, {sample_counts} samples each), with 95 % intervals. Of eight "
        "or more units, the first two and the last two are left out, because every metric finds "
        "them relevant. r: correlation of the measured scores; its 95 % interval assumes "
        "independent points."
    )
