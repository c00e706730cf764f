"""The effect of patches and healing at the size that was healed: base, pruned, patched and healed models."""

from operator import itemgetter
from typing import Any

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lamina.report.answers import answer
from lamina.report.figures import style
from lamina.report.figures.pruning_curves import reading

TITLE = "What repair gives back"
PLACE = 50
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
NEEDS = {"repairs": 1}
QUERIES = ("what_repair_gave_back",)
HATCHES = (
    "",
    "////",
    "||||",
    "xxxx",
    "\\\\\\\\",
    "++++",
    "----",
)  # dots are thousands of curves in an SVG
FILLS = ("#ffffff", "#9ecae1", "#fdae6b", "#41936f", "#bcbddc", "#c7c7c7", "#fde0a0")


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration and own task, groups of bars per selector, 95 % error bars."""
    groups = style.grouped(data, "model", "calibration", "task")
    repairs = style.repairs(data)
    selectors = {row["selector"] for row in data}
    width = max(3.2, 0.16 * len(repairs) * len(selectors) + 1.2)
    figure, grid = style.panels(len(groups), width, 2.8, 3 if width < 4.2 else 2)
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        shown = {row["selector"] for row in chosen} | set((chosen[0]["refused"] or "").split(","))
        panel(axes, chosen, repairs, [name for name in theme.selectors if name in shown])
        axes.set_title(theme.task_title(group, groups, f", {chosen[0]['removed']} removed"))
    named = [
        (style.repair_name(*pair), Patch(edgecolor="black", linewidth=0.7, **look(place)))
        for place, pair in enumerate(repairs)
    ]
    style.legend_below(figure, [("base", Patch(facecolor="#555555", edgecolor="black")), *named], 6)
    return figure


def look(place: int) -> dict[str, Any]:
    """Fill and hatch of a repair by its place among them."""
    return {"facecolor": FILLS[place % len(FILLS)], "hatch": HATCHES[place % len(HATCHES)]}


def panel(
    axes: Axes, data: style.Rows, repairs: list[tuple[str, str]], selectors: list[str]
) -> None:
    """The base model's bar at the left, then a group of bars per selector, one bar per variant."""
    first = data[0]
    bars: dict[str, Any] = dict(
        linewidth=0.7, edgecolor="black", error_kw=dict(elinewidth=0.9, capsize=1.6)
    )
    base_error = style.reach(first["base_stderr"])
    axes.bar(-0.75, first["base_value"], 0.3, yerr=base_error, color="#555555", **bars)
    axes.axhline(first["base_value"], color="#555555", linewidth=0.8, linestyle="--", zorder=1)
    if first["chance"] is not None:
        axes.axhline(
            first["chance"], color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1, zorder=3
        )
    width = 0.86 / len(repairs)
    for spot, name in enumerate(selectors):
        chosen = [row for row in data if row["selector"] == name]
        for turn, row in enumerate(chosen):
            place = repairs.index((row["repair"], row["healing"]))
            x = spot + (turn - (len(chosen) - 1) / 2) * width
            error = style.reach(row["stderr"])
            bar = axes.bar(x, row["value"], width, yerr=error, **look(place), **bars)
            style.hint(
                bar[0],
                f"{name}, {style.repair_name(row['repair'], row['healing'])}: {reading(row, error)}",
            )
        if not chosen:
            axes.text(
                spot,
                0.02,
                "no plan",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7.5,
                color=style.NEUTRAL,
            )
    style.slanted(axes, [-0.75, *range(len(selectors))], ["base", *selectors], 30)
    axes.set_xlim(-1.05, len(selectors) - 0.45)
    axes.grid(False, axis="x")
    style.metric_scale(
        axes, first["metric"], [first["base_value"], *(row["value"] for row in data)]
    )


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Own tasks at the largest size that was healed, else at the largest that was patched."""
    rows = [row for row in answer(connection, QUERIES[0]) if row["own"]]
    sizes: dict[tuple[str, str], tuple[bool, int]] = {}
    for row in (row for row in rows if (row["repair"], row["healing"]) != ("none", "none")):
        place = row["model"], row["calibration"]
        sizes[place] = max((row["healing"] != "none", row["removed"]), sizes.get(place, (False, 0)))
    shown = [
        row
        for row in rows
        if row["removed"] == sizes.get((row["model"], row["calibration"]), (False, 0))[1]
    ]
    repairs, places = style.repairs(shown), itemgetter("model", "calibration", "task", "selector")
    return sorted(
        shown, key=lambda row: (*places(row), repairs.index((row["repair"], row["healing"])))
    )


def caption(data: style.Rows) -> str:
    return (
        "The calibration's own benchmark task before and after repair, at the largest size that was healed (or "
        "patched, where nothing was healed). Bars are test-set values with 95 % intervals "
        f"({style.counts([row['n_samples'] for row in data])} test documents per bar). Dashed: base model; dotted: "
        "guessing, where known. Repairs that are not part of the study have no bar."
    )
