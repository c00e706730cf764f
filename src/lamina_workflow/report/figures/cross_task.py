"""The effect of a plan made for one calibration on the tasks of the other calibrations."""

import duckdb
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lamina.variant import describe_size
from lamina_workflow.report.answers import answer_question
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import draw_number_cell

TITLE = "What a plan costs the other tasks"
POSITION = 46
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
NEEDS = {"calibrations": 2, "tasks": 2}
QUERIES = ("what_pruning_for_one_task_costs_the_others",)
COLOURS = LinearSegmentedColormap.from_list(
    "change",
    [(0, "#5b1203"), (0.28, "#d7540f"), (0.55, "#fdc57f"), (0.8, "#ffffff"), (1, "#2f7fb8")],
)
SCALE = Normalize(-0.8, 0.2)
NOT_TESTED = "#eeeeee"


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Tasks with an accuracy, at one size of each selector.

    It is the largest size at which another calibration's task was tested.
    """
    rows = [row for row in answer_question(connection, QUERIES[0]) if row["higher_is_better"]]
    largest_sizes: dict[tuple[str, str], int] = {}
    for row in rows:
        if not row["own"]:
            key = (row["model"], row["selector"])
            largest_sizes[key] = max(row["removed"], largest_sizes.get(key, row["removed"]))
    shown_rows = [
        row for row in rows if row["removed"] == largest_sizes.get((row["model"], row["selector"]))
    ]
    return sorted(
        shown_rows,
        key=lambda row: (row["model"], row["calibration"], row["task"], row["selector"]),
    )


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """Plans down, tasks across; one panel per model and selector, one colour scale for all."""
    groups = theme.group_by_selector(rows)
    calibrations = sorted({row["calibration"] for row in rows})
    tasks = sorted({row["task"] for row in rows})
    width = max(2.8, 0.62 * len(tasks) + 1.5)
    height = max(2.2, 0.36 * len(calibrations) + 1.8)
    figure, panels = style.make_panels(len(groups), width, height, 2 if width < 6.5 else 1)
    for axes, ((model, selector), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_matrix(axes, panel_rows, calibrations, tasks)
        title = f"{selector}, {describe_size(panel_rows[0]['removed'])}{_note_repairs(panel_rows)}"
        axes.set_title(theme.format_title(model, title))

    label = "change of accuracy, percentage points"
    bar = style.add_colour_bar(figure, panels, SCALE, COLOURS, label, 0.6, extend="both")
    bar.ax.xaxis.set_major_formatter(lambda value, _: _format_points(value, ".0f"))
    own_task = Patch(facecolor="none", edgecolor="black", linewidth=1.6)
    legend_entries = [
        ("the plan's own task", own_task),
        ("not tested", Patch(facecolor=NOT_TESTED)),
    ]
    style.add_legend(figure, legend_entries, 2)
    return figure


def _note_repairs(rows: style.Rows) -> str:
    """The repairs of a panel's plans, or that they lack the repairs they were chosen with."""
    if any(row["repair"] != row["chosen_repair"] for row in rows):
        return ", bare (chosen for a repair)"
    repairs = sorted({row["repair"] for row in rows} - {"none"})
    return f", {' or '.join(repairs)}" if repairs else ""


def _draw_matrix(axes: Axes, rows: style.Rows, calibrations: list[str], tasks: list[str]) -> None:
    """One matrix; each cell holds the change and half its 95 % interval, in percentage points."""
    axes.set_facecolor(NOT_TESTED)
    for row in rows:
        cell = (tasks.index(row["task"]), calibrations.index(row["calibration"]))
        text = _format_points(row["change"], "+.0f")
        if row["change_stderr"] is not None:
            half_width = style.compute_half_width(row["change_stderr"])
            text += f" ± {_format_points(half_width, '.0f')}"
        draw_number_cell(axes, cell, row["change"], text, COLOURS, SCALE)
    for row in rows:
        if row["own"]:
            _outline_cell(axes, tasks.index(row["task"]), calibrations.index(row["calibration"]))

    prefix = find_shared_prefix(tasks)
    task_names = [task.removeprefix(prefix) for task in tasks]
    style.set_matrix_axes(axes, len(tasks), calibrations)
    style.set_slanted_names(axes, range(len(tasks)), task_names)
    axes.set(xlabel=f"tested on {prefix}…" if prefix else "tested on", ylabel="plan made for")


def _outline_cell(axes: Axes, column: int, row: int) -> None:
    corner = (column - 0.46, row - 0.46)
    outline = Rectangle(corner, 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.6)
    axes.add_patch(outline)


def _format_points(share: float, form: str) -> str:
    """A share in percentage points."""
    return style.with_minus_signs(f"{100 * share:{form}}")


def find_shared_prefix(names: list[str]) -> str:
    """The names' common part up to an underscore, if there are several names and all share it."""
    prefix = names[0].split("_")[0] + "_"
    is_shared = all(name.startswith(prefix) and name != prefix for name in names)
    return prefix if len(names) > 1 and is_shared else ""


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Plans made for one calibration (rows), tested on all tasks (columns). A plan has no "
        "repair, unless the title names the repair with which its selector chose it. Numbers: "
        "change of accuracy from the base model in percentage points ± half the width of its 95 % "
        f"interval, paired over test documents where these are known ({sample_counts} per cell). "
        "Outlined: the plan's own task. Perplexities have another unit and are only in the table "
        "of variants. All panels share one colour scale, the same in every report."
    )
