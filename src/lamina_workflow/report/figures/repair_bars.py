"""The effect of patches and healing, at the size that was healed.

Bars are the base, pruned, patched and healed models.
"""

from typing import Any

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lamina.variant import describe_size
from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.pruning_curves import format_result

TITLE = "What repair recovers"
POSITION = 50
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
NEEDS = {"repairs": 1}
QUERIES = ("what_repair_gave_back",)
# No dots: these would add thousands of curves to the SVG.
HATCHES = ("", "////", "||||", "xxxx", "\\\\\\\\", "++++", "----")
FILLS = ("#ffffff", "#9ecae1", "#fdae6b", "#41936f", "#bcbddc", "#c7c7c7", "#fde0a0")
BASE_BAR = "#555555"
BAR_STYLE: dict[str, Any] = {
    "linewidth": 0.7,
    "edgecolor": "black",
    "error_kw": {"elinewidth": 0.9, "capsize": 1.6},
}


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Own tasks at the largest healed size, else at the largest patched one."""
    rows = [row for row in answer_question(connection, QUERIES[0]) if row["own"]]
    # By model and calibration: whether a size was healed, and the largest such size.
    best_sizes: dict[tuple[str, str], tuple[bool, int]] = {}
    for row in rows:
        if (row["repair"], row["healing"]) != ("none", "none"):
            key = (row["model"], row["calibration"])
            size = (row["healing"] != "none", row["removed"])
            best_sizes[key] = max(size, best_sizes.get(key, size))

    shown_rows = []
    for row in rows:
        best_size = best_sizes.get((row["model"], row["calibration"]))
        if best_size is not None and row["removed"] == best_size[1]:
            shown_rows.append(row)
    repairs = style.list_repairs(shown_rows)
    return sorted(
        shown_rows,
        key=lambda row: (
            row["model"],
            row["calibration"],
            row["task"],
            row["selector"],
            repairs.index((row["repair"], row["healing"])),
        ),
    )


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration and own task, groups of bars per selector, 95 % error bars."""
    groups = group_rows(rows, "model", "calibration", "task")
    repairs = style.list_repairs(rows)
    n_selectors = len({row["selector"] for row in rows})
    width = max(3.2, 0.16 * len(repairs) * n_selectors + 1.2)
    figure, panels = style.make_panels(len(groups), width, 2.8, 3 if width < 4.2 else 2)
    for axes, (group, panel_rows) in zip(panels, groups.items(), strict=True):
        selectors = _list_selectors(panel_rows, theme)
        _draw_panel(axes, panel_rows, repairs, selectors)
        note = f", {describe_size(panel_rows[0]['removed'])}"
        axes.set_title(theme.format_task_title(group, groups, note))

    legend_entries = [("base", Patch(facecolor=BASE_BAR, edgecolor="black"))]
    for index, (repair, healing) in enumerate(repairs):
        patch = Patch(edgecolor="black", linewidth=0.7, **_fill_style(index))
        legend_entries.append((style.format_repair(repair, healing), patch))
    style.add_legend(figure, legend_entries, 6)
    return figure


def _list_selectors(rows: style.Rows, theme: style.Theme) -> list[str]:
    """The selectors of a panel: those with a result, and those whose plan was refused."""
    refused = (rows[0]["refused"] or "").split(",")
    names = {row["selector"] for row in rows} | set(refused)
    return [name for name in theme.selector_styles if name in names]


def _fill_style(repair_index: int) -> dict[str, Any]:
    """Fill and hatch of a repair's bars."""
    return {
        "facecolor": FILLS[repair_index % len(FILLS)],
        "hatch": HATCHES[repair_index % len(HATCHES)],
    }


def _draw_panel(
    axes: Axes, rows: style.Rows, repairs: list[tuple[str, str]], selectors: list[str]
) -> None:
    """The base model's bar at the left, then a group of bars per selector, one bar per variant."""
    _draw_references(axes, rows[0])
    for x, selector in enumerate(selectors):
        selector_rows = [row for row in rows if row["selector"] == selector]
        _draw_bars(axes, x, selector_rows, repairs)
    style.set_slanted_names(axes, [-0.75, *range(len(selectors))], ["base", *selectors], angle=30)
    axes.set_xlim(-1.05, len(selectors) - 0.45)
    axes.grid(False, axis="x")
    values = [rows[0]["base_value"], *(row["value"] for row in rows)]
    style.set_metric_scale(axes, rows[0]["metric"], values)


def _draw_references(axes: Axes, row: dict[str, Any]) -> None:
    """The base model's bar, a line at its height, and a line at chance if that is known."""
    reach = style.find_reach(row["base_value"], row["base_stderr"], row["n_samples"])
    error_bar = style.stack_reaches([reach])
    axes.bar(-0.75, row["base_value"], 0.3, yerr=error_bar, color=BASE_BAR, **BAR_STYLE)
    axes.axhline(row["base_value"], color=BASE_BAR, linewidth=0.8, linestyle="--", zorder=1)
    if row["chance"] is not None:
        axes.axhline(row["chance"], linewidth=1, zorder=3, **style.CHANCE_STYLE)


def _draw_bars(axes: Axes, x: int, rows: style.Rows, repairs: list[tuple[str, str]]) -> None:
    """The bars of one selector, around `x`."""
    width = 0.86 / len(repairs)
    for index, row in enumerate(rows):
        repair = (row["repair"], row["healing"])
        reach = style.find_reach(row["value"], row["stderr"], row["n_samples"])
        (bar,) = axes.bar(
            x + (index - (len(rows) - 1) / 2) * width,
            row["value"],
            width,
            yerr=style.stack_reaches([reach]),
            **_fill_style(repairs.index(repair)),
            **BAR_STYLE,
        )
        result = format_result(row, style.compute_half_width(row["stderr"]))
        style.add_hint(bar, f"{row['selector']}, {style.format_repair(*repair)}: {result}")
    if not rows:
        axes.text(
            x,
            0.02,
            "no plan",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=style.NEUTRAL,
        )


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Score on the calibration's own benchmark task before and after repair, at the largest "
        "size that was healed (or patched, where nothing was healed). Bars: test-set values with "
        f"95 % intervals ({sample_counts} test documents per bar). Dashed: base model. Dotted: "
        "chance, where known. Repairs that are not part of the study have no bar."
    )
