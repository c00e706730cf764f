"""Which layers one task needs more than another: a row per pair of tasks, a column per layer."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from lamina.report.figures import style
from lamina.report.figures.relevance_maps import number_cell, text_colour

TITLE = "Which layers one task needs more than another"
PLACE = 22
TABLES = ("dissociations", "models")
NEEDS = {"calibrations": 2}
QUERIES = ("which_layers_one_task_needs_more",)
PAIRS = 24  # drawn of each model, or nothing is read; beside the picture stand all
COLOURS = LinearSegmentedColormap.from_list(
    "difference", ["#b04a00", "#fdc57f", "#ffffff", "#9ecae9", "#08519c"]
)
SCALE = Normalize(-1, 1)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, one colour scale for all."""
    models = style.grouped(shown(data), "model")
    depth = 1 + max(row["layer"] for drawn in models.values() for row in drawn)
    most = max(len(set(map(_pair, drawn))) for drawn in models.values())
    figure, grid = style.panels(
        len(models), max(4.5, 0.42 * depth + 2.2), max(1.6, 0.24 * most + 1.3), 1
    )
    for axes, ((model,), drawn) in zip(grid, models.items(), strict=True):
        _panel(axes, drawn, depth)
        axes.set_title(theme.title(model, "difference of accuracy relevance"))
    label = "matters more to the second task  ◂    ▸  matters more to the first"
    style.colour_bar(figure, grid, SCALE, COLOURS, label, 0.7)
    dot: style.Look = dict(marker="o", linestyle="", markersize=3.5, color="black")
    style.legend_below(
        figure, [("sure (corrected for the number of layers; beyond halves of one task)", dot)], 1
    )
    return figure


def shown(data: style.Rows) -> list[dict[str, Any]]:
    """The rows of the drawn pairs: at most PAIRS per model, those with the widest sure differences, then the widest."""
    wanted: set[tuple[str, ...]] = set()
    for (model,), mine in style.grouped(data, "model").items():
        widest = {
            pair: max((row["sure"], abs(row["difference"])) for row in rows)
            for pair, rows in style.grouped(mine, "calibration", "rival").items()
        }
        wanted |= {
            (model, *pair) for pair in sorted(widest, key=widest.__getitem__, reverse=True)[:PAIRS]
        }
    return [row for row in data if (row["model"], *_pair(row)) in wanted]


def _pair(row: dict[str, Any]) -> tuple[str, str]:
    return row["calibration"], row["rival"]


def _panel(axes: Axes, data: style.Rows, depth: int) -> None:
    pairs = list(dict.fromkeys(map(_pair, data)))
    style.matrix(axes, depth, [f"{one} − {other}" for one, other in pairs])
    axes.set_xlabel("layer (0 = first)")
    axes.set_xticks(range(depth))
    both_ways = {_pair(row) for row in data if row["is_double"]}
    for label, pair in zip(axes.get_yticklabels(), pairs, strict=True):
        label.set_fontweight("bold" if pair in both_ways else "normal")
    for row in data:
        x, y = row["layer"], pairs.index(_pair(row))
        text = f"{round(row['difference'], 2) + 0:.2f}".replace("-", "−")
        square = number_cell(axes, (x, y), row["difference"], text, COLOURS, SCALE)
        said = (
            f"{row['calibration']} − {row['rival']}, layer {x}: {row['difference']:.3f} [{row['ci_low']:.3f}, "
            f"{row['ci_high']:.3f}], q = {row['q_value']:.4f}, halves of one task {row['null_low']:.3f} to "
            f"{row['null_high']:.3f}, n = {row['n_samples']} and {row['n_rival']}"
        )
        style.hint(square, said.replace("-", "−"))
        if row["sure"]:
            ink = text_colour(COLOURS(SCALE(row["difference"])))
            axes.plot(x + 0.40, y - 0.32, "o", markersize=2.6, color=ink, markeredgewidth=0)


def caption(data: style.Rows) -> str:
    most = max(len({_pair(row) for row in mine}) for mine in style.grouped(data, "model").values())
    some = (
        f" Drawn are {PAIRS} of {most} pairs, with the widest sure differences; the file has all."
        * (most > PAIRS)
    )
    counted = [row[key] for row in data for key in ("n_samples", "n_rival")]
    return (
        "What removing a layer costs the first task less what it costs the second, each as a share of the accuracy "
        f"above chance (base model; calibration samples, {style.counts(counted)} per task). Dots: sure by a paired "
        "bootstrap, corrected over the layers of a pair (Benjamini and Hochberg, 5 %), and beyond what random halves "
        "of one task differ by. Bold: sure layers on both sides, a double dissociation; with dots on one side alone, "
        f"one task may merely be the easier one to break.{some}"
    )
