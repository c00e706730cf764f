"""The gain from removing layers: latency, throughput, size and memory against the base model."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style
from lamina.report.figures.repair_bars import repair_name
from lamina.report.paired_tests import ratio_interval

TITLE = "What pruning buys"
PLACE = 90
TABLES = ("efficiency", "plans", "models")
ABOUT = (
    "Latency of the prompt, throughput of generation, parameters and memory as ratios to the base model measured in "
    "turn, geometric means over repetitions with 95 % intervals; one point for each repair, size and number of runs."
)

QUERIES = ("what_pruning_buys",)
MEASURES = (
    ("latency_ratio", "latency_ratio_stderr", "latency of the prompt"),
    ("tokens_per_second_ratio", "tokens_per_second_ratio_stderr", "tokens per second"),
    ("parameters_ratio", None, "parameters"),
    ("peak_memory_ratio", None, "peak memory"),
)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One row of panels per model: each measured ratio against the number of layers removed."""
    models = sorted({row["model"] for row in data})
    measures = [measure for measure in MEASURES if any(row[measure[0]] is not None for row in data)]
    names = sorted({series(row) for row in data}, key=lambda name: (name != "pruned", name))
    looks: dict[str, dict[str, Any]] = {
        name: dict(color=style.COLOURS[place % len(style.COLOURS)], marker=style.MARKERS[place % len(style.MARKERS)])
        for place, name in enumerate(names)
    }
    figure, grid = style.panels(len(models) * len(measures), 3.2, 2.8, len(measures))
    for place, axes in enumerate(grid):
        model, (column, error_column, title) = models[place // len(measures)], measures[place % len(measures)]
        shown = [row for row in data if row["model"] == model and row[column] is not None]
        panel(axes, shown, column, error_column, looks)
        axes.set_title(theme.title(model, title))
    handles = [Line2D([], [], linestyle="", markersize=4.5, **looks[name]) for name in names]
    handles.append(Line2D([], [], color="#999999", linestyle="--", linewidth=0.9))
    handles.append(Line2D([], [], linestyle="", marker="$2$", color="black", markersize=4))
    style.legend_below(figure, handles, [*names, "base model", "runs of removed layers"], 6)
    return figure


def series(row: dict[str, Any]) -> str:
    """Name of a timed variant's repair, and of its units if they are not whole layers."""
    name = repair_name(row["repair"], row["healing"])
    return name if row["component"] in (None, "layer") else f"{name}, {row['component']} units"


def panel(
    axes: Axes, data: list[dict[str, Any]], column: str, error_column: str | None, looks: dict[str, dict[str, Any]]
) -> None:
    """Points of one size are side by side, by repair and then by number of runs, each with its own interval."""
    axes.axhline(1, color="#999999", linestyle="--", linewidth=0.9)
    sizes = sorted({row["removed"] for row in data})
    gap = min([1, *(after - before for before, after in zip(sizes, sizes[1:], strict=False))])
    lane = 0.7 * gap / max(len(looks), 1)
    for place, (name, look) in enumerate(looks.items()):
        for size in sizes:
            points = [row for row in data if series(row) == name and row["removed"] == size]
            for number, row in enumerate(points):
                shift = place + (number + 0.5) / len(points) - len(looks) / 2
                x, y = size + lane * shift, row[column]
                error = row[error_column] if error_column else None
                low, high = (y, y) if error is None else ratio_interval(y, error, row["repeats"])
                reach = f"{y:.3f}" if error is None else f"{y:.3f} [{low:.3f}, {high:.3f}]"
                ends = None if error is None else [[y - low], [high - y]]
                axes.errorbar(x, y, ends, markersize=4, elinewidth=1.2, capsize=3, **look)
                style.hints(
                    axes, [(x, y, f"{name}, {size} removed in {row['runs']} runs: {reach}, n = {row['repeats']}")]
                )
                if len(points) > 1:
                    above: dict[str, Any] = dict(xytext=(0, 3), textcoords="offset points", ha="center", fontsize=6)
                    axes.annotate(str(row["runs"]), (x, high), **above)
    axes.set_xticks(sizes)
    axes.set_xlim(sizes[0] - 0.6 * gap, sizes[-1] + 0.6 * gap)
    layers = all(row["component"] in (None, "layer") for row in data)
    axes.set(xlabel="layers removed" if layers else "units removed", ylabel="ratio to base model")


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    first = data[0]
    timed = {row["timed"] or number for number, row in enumerate(data)}
    return (
        "Which layers go does not change the cost, only their number and kind, the patch, and at how many runs of "
        "removed layers it acts; healing is merged into the weights. So one variant of each was timed, in turn with "
        f"the base model ({len(timed):,} variants, {style.counts([row['repeats'] for row in data])} repetitions each), "
        "and repairs that build the model alike share the timing. Points are geometric means over repetitions with "
        "95 % intervals (Student's t of the logarithms); where several of a size were timed, a number says how many "
        "runs each has. Parameters are counted and memory is the most of all repetitions, without an interval. "
        f"Latency is that of the prompt alone, {first['prompt']} tokens; {first['generate']} tokens are "
        f"generated after it, batch {first['batch']}, {first['dtype']} on {first['device']}."
    )
