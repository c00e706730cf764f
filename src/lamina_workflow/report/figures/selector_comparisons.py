"""Every selector against every other one at equal size: mean differences.

Selectors are compared first as they are meant to be used, each plan with the repair that its
selector chose, and then with equal repairs.
"""

from typing import Any

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.variant import describe_size
from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.paired_tests import AS_CHOSEN

TITLE = "Which selector wins"
POSITION = 45
TABLES = ("comparisons", "plans", "models")
NEEDS = {"selectors": 2, "tasks": 1}
QUERIES = ("which_selector_wins",)
SIGNIFICANCE_LEVEL = 0.05


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Pairs with a mean over tasks, in points of accuracy.

    If all plans of a pair were chosen without a repair, both comparisons agree. It is drawn once.
    """
    answer = [
        row for row in answer_question(connection, QUERIES[0]) if row["difference"] is not None
    ]
    compared_sizes = {
        (row["model"], row["removed"]) for row in answer if row["repair"] == AS_CHOSEN
    }
    rows = []
    for row in answer:
        is_bare = (row["repair"], row["healing"]) == ("none", "none")
        is_as_chosen = not (row["chosen_for"] or row["rival_chosen_for"])
        if is_bare and is_as_chosen and (row["model"], row["removed"]) in compared_sizes:
            continue
        row["difference"] *= 100
        row["low"] = 100 * row["ci_low"]
        row["high"] = 100 * row["ci_high"]
        rows.append(row)
    return rows


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, one row per repair and pair, one mark per size."""
    groups = group_rows(rows, "model")
    most_pairs = style.count_most(groups.values(), _name_pair)
    sizes = sorted({row["removed"] for row in rows})
    marker_styles = style.assign_markers([describe_size(size) for size in sizes], 4.5)
    height = 0.8 + 0.1 * most_pairs * (1 + len(sizes))
    figure, panels = style.make_panels(len(groups), 8, height, 1)
    for axes, ((model,), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_panel(axes, panel_rows, sizes, marker_styles)
        axes.set_title(theme.format_title(model, "difference of accuracy"))
    style.add_legend(figure, marker_styles.items())
    return figure


def _draw_panel(
    axes: Axes, rows: style.Rows, sizes: list[int], marker_styles: dict[str, style.LineStyle]
) -> None:
    pairs = _list_pairs(rows)
    axes.axvline(0, color=style.NEUTRAL, linewidth=0.9)
    for row in rows:
        offset = (sizes.index(row["removed"]) + 0.5) / len(sizes) - 0.5
        y = pairs.index(_name_pair(row)) + 0.8 * offset
        ends = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
        fill = None if row["p_holm"] < SIGNIFICANCE_LEVEL else "white"
        marker = marker_styles[describe_size(row["removed"])]
        axes.errorbar(row["difference"], y, xerr=ends, capsize=2, mfc=fill, **marker)
    axes.set_xlabel("difference in percentage points")
    style.set_row_names(axes, pairs)


def _list_pairs(rows: style.Rows) -> list[str]:
    """The names of the pairs in some rows, in the order of the rows."""
    return list(dict.fromkeys(_name_pair(row) for row in rows))


def _name_pair(row: dict[str, Any]) -> str:
    selector = row["selector"] + _note_repair(row, row["chosen_for"])
    rival = row["rival"] + _note_repair(row, row["rival_chosen_for"])
    if row["repair"] == AS_CHOSEN:
        return f"{selector} − {rival}"
    return f"{style.format_repair(row['repair'], row['healing'])}:  {selector} − {rival}"


def _note_repair(row: dict[str, Any], chosen_for: str | None) -> str:
    """A note on a selector whose plans were chosen with a repair."""
    if chosen_for and row["repair"] == AS_CHOSEN:
        return f" with {chosen_for}"
    if chosen_for and (row["repair"], row["healing"]) == ("none", "none"):
        return " (bare)"
    return ""


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "First selector minus second, mean over the calibrations' own tasks, on the same test "
        f"documents ({sample_counts} over all tasks). Right of 0, the first is better. Rows "
        "without a colon: each plan has the repair that its selector chose for it, if any. Rows "
        "with a colon: both have the same repair; plans marked bare were chosen for a repair that "
        "they lack here. Lines: 95 % intervals of each pair alone. Filled: significant at 5 % in "
        "a sign-flip test over documents, corrected over the pairs of the same size and repair "
        "(Holm). Hollow: not significant."
    )
