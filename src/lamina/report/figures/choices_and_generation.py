"""The share of right choices that a variant keeps, against the share of right written answers that it keeps."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style
from lamina.report.figures.repair_bars import repair_name

TITLE = "Choosing and writing the answer"
PLACE = 55
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "models")
ABOUT = (
    "Accuracy by choice against exact match of written answers to the same questions, as shares of the base model's, "
    "before and after repair, with 95 % intervals. Below the diagonal, a repair mends choices more than generation."
)

QUERIES = ("what_is_left_of_choosing_and_writing",)
PLAN = ("calibration", "selector", "removed")


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per task, one point per variant, a line from each pruned variant to each of its repaired variants."""
    groups = list(dict.fromkeys((row["model"], row["task"]) for row in data))
    repairs = list(dict.fromkeys((row["repair"], row["healing"]) for row in data if not row["bare"]))
    figure, grid = style.panels(len(groups), 3.6, 3.6, 3)
    for axes, (model, task) in zip(grid, groups, strict=True):
        panel(axes, [row for row in data if (row["model"], row["task"]) == (model, task)], repairs)
        axes.set_title(theme.title(model, task))
    looks = [look(None), *(look(place) for place in range(len(repairs)))]
    handles = [Line2D([], [], linestyle="", markersize=5, **each) for each in looks]
    style.legend_below(figure, handles, ["pruned", *(repair_name(*repair) for repair in repairs)], 4)
    return figure


def look(place: int | None) -> dict[str, Any]:
    """Marker of a repair by its place among them; None is a variant without repair."""
    if place is None:
        return {"marker": "o", "color": style.NEUTRAL, "markerfacecolor": "white"}
    return {
        "marker": style.MARKERS[(place + 1) % len(style.MARKERS)],
        "color": style.COLOURS[place % len(style.COLOURS)],
    }


def panel(axes: Axes, data: list[dict[str, Any]], repairs: list[tuple[str, str]]) -> None:
    """Points with both intervals; a number beside each point counts the removed units."""
    axes.plot([0, 2], [0, 2], color=style.NEUTRAL, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    bare = {tuple(row[key] for key in PLAN): row for row in data if row["bare"]}
    for row in data:
        at = row["choice_kept"], row["written_kept"]
        if not row["bare"] and (start := bare.get(tuple(row[key] for key in PLAN))):
            axes.plot(
                [start["choice_kept"], at[0]], [start["written_kept"], at[1]], color="#bbbbbb", linewidth=0.8, zorder=1
            )
        place = None if row["bare"] else repairs.index((row["repair"], row["healing"]))
        across, up = (style.reach(row[f"{kind}_kept_stderr"]) for kind in ("choice", "written"))
        axes.errorbar(*at, up, across, linestyle="", markersize=5, elinewidth=0.7, **look(place))
        chosen, written = (
            style.interval(row[f"{kind}_kept"], row[f"{kind}_kept_stderr"]) for kind in ("choice", "written")
        )
        name = f"{row['selector']}, {row['removed']} removed, {repair_name(row['repair'], row['healing'])}"
        style.hints(axes, [(*at, f"{name}: choices {chosen}, written {written}, n = {row['n_samples']}")])
        axes.annotate(str(row["removed"]), at, (4, 4), textcoords="offset points", fontsize=6.5)
    top = max(1.08, *(1.05 * row[f"{kind}_kept"] for row in data for kind in ("choice", "written")))
    axes.set(xlim=(0, top), ylim=(-0.03, top), xlabel="choices kept (share of base)", ylabel="written answers kept")


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "The calibration's own questions, answered by choosing among given answers (across) and by writing (up: exact "
        "match of the likeliest answer), as shares of the base model's numbers with 95 % intervals "
        f"({style.counts([row['n_samples'] for row in data])} test documents per point), over all selectors. Lines go "
        "from a pruned variant to what repairs made of it; numbers count the removed units. Below the dotted diagonal "
        "more is left of the choices than of the answers that the model writes; pass@k of sampled answers and their "
        "repetition stand in table benchmarks."
    )
