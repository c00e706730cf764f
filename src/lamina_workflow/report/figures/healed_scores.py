"""Test scores during healing, epoch by epoch [arXiv 2605.14075, figure 21]."""

from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.variant import describe_size
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.training_curves import KEPT_STYLE, choose_dashes, choose_marker

TITLE = "How test scores go as healing goes on"
POSITION = 81
FOLDED = True
TABLES = ("training", "benchmarks", "benchmark_samples", "calibrations", "plans", "models")
QUERIES = ("how_test_scores_go_as_healing_goes_on",)
NEEDS = {"passes": 1}
OFFSET = 0.06  # distance of two lines, in epochs
BASE_STYLE: style.LineStyle = {"color": style.BASE_MODEL, "linestyle": "--", "linewidth": 0.9}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration, task, size and healing, one line per selector and repair."""
    groups = group_rows(rows, "model", "calibration", "task", "metric", "removed", "healing")
    figure, panels = style.make_panels(len(groups), 3.5, 2.7, 3)
    for axes, (group, panel_rows) in zip(panels, groups.items(), strict=True):
        model, calibration, task, metric, removed, healing = group
        axes.axhline(panel_rows[0]["base_value"], **BASE_STYLE)
        curves = group_rows(panel_rows, "selector", "repair")
        for index, ((selector, repair), curve) in enumerate(curves.items()):
            marker = choose_marker(theme.selector_styles[selector], repair)
            # Side by side, so that intervals do not cover each other.
            offset = OFFSET * (index - (len(curves) - 1) / 2)
            _draw_curve(axes, curve, marker, offset)
        _set_score_scale(axes, metric, panel_rows)
        style.set_integer_ticks(axes)
        axes.set_xlabel("epochs")
        name = calibration if task.endswith(calibration) else f"{calibration} on {task}"
        axes.set_title(theme.format_title(model, f"{name}, {describe_size(removed)}, {healing}"))

    legend_entries: list[style.LegendEntry] = []
    for selector, repair in group_rows(rows, "selector", "repair"):
        name = selector if repair == "none" else f"{selector} + {repair}"
        marker = choose_marker(theme.selector_styles[selector], repair)
        legend_entries.append((name, {"linestyle": choose_dashes(repair), **marker}))
    chosen_style = {"color": style.NEUTRAL, "linestyle": "", **KEPT_STYLE}
    legend_entries.append(("chosen by validation", chosen_style))
    legend_entries.append(("base model", BASE_STYLE))
    style.add_legend(figure, legend_entries, 4)
    return figure


def _set_score_scale(axes: Axes, metric: str, rows: style.Rows) -> None:
    """Scale the axis to the scores and their intervals: they differ little between epochs."""
    values = [rows[0]["base_value"]]
    values += [row["value"] for row in rows]
    style.set_metric_scale(axes, metric, values)
    if metric != "perplexity":
        lowest_ends = [row["value"] - _find_reach(row)[0] for row in rows]
        known_ends = [end for end in lowest_ends if isfinite(end)]
        axes.set_ylim(max(0, min(known_ends + values) - 0.03), 1.02)


def _find_reach(row: dict[str, Any]) -> tuple[float, float]:
    return style.find_reach(row["value"], row["stderr"], row["n_samples"])


def _draw_curve(axes: Axes, rows: style.Rows, marker: style.LineStyle, offset: float) -> None:
    """The scores of the epochs with 95 % intervals, and a star for the chosen one."""
    # The chosen epoch may also be among the tested ones, with the same weights and score.
    rows_by_epoch = {row["epoch"]: row for row in rows}
    shown_rows = [rows_by_epoch[epoch] for epoch in sorted(rows_by_epoch)]
    axes.errorbar(
        [row["epoch"] + offset for row in shown_rows],
        [row["value"] for row in shown_rows],
        yerr=style.stack_reaches(_find_reach(row) for row in shown_rows),
        linestyle=choose_dashes(rows[0]["repair"]),
        linewidth=1.1,
        elinewidth=0.8,
        capsize=1.6,
        **marker,
    )
    for row in rows:
        if row["chosen"]:
            star = {"color": marker["color"], "linestyle": "", **KEPT_STYLE}
            axes.plot([row["epoch"] + offset], [row["value"]], zorder=6, **star)
    hints = [(row["epoch"] + offset, row["value"], _describe(row)) for row in shown_rows]
    style.add_hints(axes, hints)


def _describe(row: dict[str, Any]) -> str:
    """One tested epoch, as text under the pointer."""
    repair = "" if row["repair"] == "none" else f" + {row['repair']}"
    result = style.format_interval(row["value"], row["stderr"])
    return (
        f"{row['selector']}{repair}, epoch {row['epoch']} (step {row['step']}): {result} "
        f"{row['metric']}, n = {row['n_samples']}"
    )


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Scores on the calibration's own task after single epochs of healing, with 95 % intervals "
        f"({sample_counts} test documents per point, the same for all points of a panel). Epoch 0 "
        "is the variant before healing. Star: the epoch chosen on validation documents, which is "
        "the healing that other figures show. The best of all points would look better than it is, "
        "because the test documents would have picked it. Dashed grey: base model."
    )
