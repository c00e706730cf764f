"""Which layers one task needs more than another: a row per pair of tasks, a column per layer."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style
from lamina.report.figures.relevance_maps import number_cell, text_colour

TITLE = "Which layers one task needs more than another"
PLACE = 22
TABLES = ("dissociations", "models")
ABOUT = (
    "Difference of a layer's accuracy relevance for two tasks, with nothing else removed: a dot where it is surely "
    "none of chance, a name in bold where there are such layers on both sides."
)

NEEDS = {"calibrations": 2}
QUERIES = ("which_layers_one_task_needs_more",)
PAIRS = 24  # drawn of each model, or nothing is read; beside the picture stand all
COLOURS = LinearSegmentedColormap.from_list("difference", ["#b04a00", "#fdc57f", "#ffffff", "#9ecae9", "#08519c"])
SCALE = Normalize(-1, 1)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, one colour scale for all."""
    drawn = shown(data)
    models = list(dict.fromkeys(row["model"] for row in drawn))
    pairs = {model: list(dict.fromkeys(_pair(row) for row in drawn if row["model"] == model)) for model in models}
    depth = 1 + max(row["layer"] for row in drawn)
    most = max(map(len, pairs.values()))
    figure, grid = style.panels(len(models), max(4.5, 0.42 * depth + 2.2), max(1.6, 0.24 * most + 1.3), 1)
    for axes, model in zip(grid, models, strict=True):
        _panel(axes, [row for row in drawn if row["model"] == model], pairs[model], depth)
        axes.set_title(theme.title(model, "difference of accuracy relevance"))
    bar = figure.colorbar(ScalarMappable(SCALE, COLOURS), ax=grid, location="top", shrink=0.7, aspect=40, pad=0.02)
    bar.set_label("matters more to the second task  ◂    ▸  matters more to the first")
    bar.outline.set_linewidth(0.4)
    handles = [Line2D([], [], marker="o", linestyle="", markersize=3.5, color="black")]
    style.legend_below(figure, handles, ["sure (corrected for the number of layers; beyond halves of one task)"], 1)
    return figure


def shown(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the drawn pairs: at most PAIRS per model, those with the widest sure differences, then the widest."""
    wanted: set[tuple[str, ...]] = set()
    for (model,), mine in style.grouped(data, "model").items():
        widest = {
            pair: max((row["sure"], abs(row["difference"])) for row in rows)
            for pair, rows in style.grouped(mine, "calibration", "rival").items()
        }
        wanted |= {(model, *pair) for pair in sorted(widest, key=widest.__getitem__, reverse=True)[:PAIRS]}
    return [row for row in data if (row["model"], *_pair(row)) in wanted]


def _pair(row: dict[str, Any]) -> tuple[str, str]:
    return row["calibration"], row["rival"]


def _panel(axes: Axes, data: list[dict[str, Any]], pairs: list[tuple[str, str]], depth: int) -> None:
    axes.set(xlim=(-0.5, depth - 0.5), ylim=(len(pairs) - 0.5, -0.5), xlabel="layer (0 = first)")
    axes.set_xticks(range(depth))
    axes.set_yticks(range(len(pairs)), [f"{one} − {other}" for one, other in pairs])
    both_ways = {_pair(row) for row in data if row["is_double"]}
    for label, pair in zip(axes.get_yticklabels(), pairs, strict=True):
        label.set_fontweight("bold" if pair in both_ways else "normal")
    axes.tick_params(length=0)
    axes.grid(False)
    places = {pair: place for place, pair in enumerate(pairs)}
    for row in data:
        x, y = row["layer"], places[_pair(row)]
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
    """The caption: what the figure shows, and the number of samples."""
    most = max(len({_pair(row) for row in mine}) for mine in style.grouped(data, "model").values())
    some = f" Drawn are {PAIRS} of {most} pairs, with the widest sure differences; the file has all." * (most > PAIRS)
    counted = [row[key] for row in data for key in ("n_samples", "n_rival")]
    return (
        "What removing a layer costs the first task less what it costs the second, each as a share of the accuracy "
        f"above chance (base model; calibration samples, {style.counts(counted)} per task). Dots: sure by a paired "
        "bootstrap, corrected over the layers of a pair (Benjamini and Hochberg, 5 %), and beyond what random halves "
        "of one task differ by. Bold: sure layers on both sides, a double dissociation; with dots on one side alone, "
        f"one task may merely be the easier one to break.{some}"
    )
