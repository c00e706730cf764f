"""The effect of a plan that was made for one calibration on the tasks of the others."""

import duckdb
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lamina.report.answers import answer
from lamina.report.figures import style
from lamina.report.figures.relevance_maps import number_cell

TITLE = "What a plan costs the other tasks"
PLACE = 46
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
NEEDS = {"calibrations": 2, "tasks": 2}
QUERIES = ("what_pruning_for_one_task_costs_the_others",)
COLOURS = LinearSegmentedColormap.from_list(
    "change",
    [(0, "#5b1203"), (0.28, "#d7540f"), (0.55, "#fdc57f"), (0.8, "#ffffff"), (1, "#2f7fb8")],
)
SCALE = Normalize(-0.8, 0.2)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Plans down, tasks across; one panel per model and selector, one colour scale for all."""
    groups = theme.by_selector(data)
    calibrations = sorted({row["calibration"] for row in data})
    tasks = sorted({row["task"] for row in data})
    width, height = max(2.8, 0.62 * len(tasks) + 1.5), max(2.2, 0.36 * len(calibrations) + 1.8)
    figure, grid = style.panels(len(groups), width, height, 2 if width < 6.5 else 1)
    for axes, ((model, selector), chosen) in zip(grid, groups.items(), strict=True):
        panel(axes, chosen, calibrations, tasks)
        axes.set_title(theme.title(model, f"{selector}, {chosen[0]['removed']} removed"))
    bar = style.colour_bar(
        figure, grid, SCALE, COLOURS, "change of accuracy, percentage points", 0.6, extend="both"
    )
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}".replace("-", "−"))
    own = Patch(facecolor="none", edgecolor="black", linewidth=1.6)
    style.legend_below(
        figure, [("the plan's own task", own), ("not tested", Patch(facecolor="#eeeeee"))], 2
    )
    return figure


def panel(axes: Axes, data: style.Rows, calibrations: list[str], tasks: list[str]) -> None:
    """One matrix; each cell holds the change and half its 95 % interval, in hundredths."""
    axes.set_facecolor("#eeeeee")
    for row in data:
        x, y = tasks.index(row["task"]), calibrations.index(row["calibration"])
        error = (
            ""
            if row["change_stderr"] is None
            else f" ± {100 * style.reach(row['change_stderr']):.0f}"
        )
        text = f"{100 * row['change']:+.0f}{error}".replace("-", "−")
        number_cell(axes, (x, y), row["change"], text, COLOURS, SCALE)
    for row in data:
        if row["own"]:
            x, y = tasks.index(row["task"]), calibrations.index(row["calibration"])
            axes.add_patch(
                Rectangle(
                    (x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.6
                )
            )
    prefix = shared_prefix(tasks)
    style.matrix(axes, len(tasks), calibrations)
    style.slanted(axes, range(len(tasks)), [task.removeprefix(prefix) for task in tasks])
    axes.set(xlabel=f"tested on {prefix}…" if prefix else "tested on", ylabel="plan made for")


def shared_prefix(names: list[str]) -> str:
    """The first part of the names, up to an underscore, if all names share it; labels then leave it out."""
    head = names[0].split("_")[0] + "_"
    return (
        head
        if len(names) > 1 and all(name.startswith(head) and name != head for name in names)
        else ""
    )


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Tasks with an accuracy, at the largest size of each selector at which another calibration's task was tested."""
    rows = [row for row in answer(connection, QUERIES[0]) if row["higher_is_better"]]
    largest: dict[tuple[str, str], int] = {}
    for row in (row for row in rows if not row["own"]):
        way = row["model"], row["selector"]
        largest[way] = max(row["removed"], largest.get(way, 0))
    shown = [row for row in rows if row["removed"] == largest.get((row["model"], row["selector"]))]
    return sorted(
        shown, key=lambda row: (row["model"], row["calibration"], row["task"], row["selector"])
    )


def caption(data: style.Rows) -> str:
    return (
        "Plans made for one calibration (rows) tested on all tasks (columns), without repair. Numbers: change of the "
        "accuracy against the base model in percentage points ± half the 95 % interval, paired over test documents "
        f"where they are known ({style.counts([row['n_samples'] for row in data])} per cell). Outlined: the plan's "
        "own task. Perplexities have another unit and are left to the table of variants. One colour scale for all "
        "panels, the same in every report."
    )
