"""The common style of all figures: fonts, colours that every reader can distinguish, panel grids, and saving."""

import html
import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import duckdb
import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lamina.relevance.statistics import Z95
from lamina.report.answers import grouped, rows

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titley": 1.0,  # nothing stands above a panel that it would have to look out for, at every layout
        "axes.labelsize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e3e3e3",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "xtick.major.size": 0,  # the grid says where, and a large study has thousands
        "ytick.major.size": 0,
        "figure.facecolor": "white",
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",  # a page with outlines of every letter opens slowly
    }
)

HINT = "hint:"  # begins the id of what says something under the pointer
# Of the letters of a figure, which are laid out for the first; the second has the same widths, and others are narrower.
FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"

# Okabe and Ito's colours without the yellow, which vanishes on white; markers and dashes tell the same without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)), (0, (3, 3)))
NEUTRAL = "#555555"
METRIC_LABELS = {
    "acc": "acc (share correct)",
    "acc_norm": "acc_norm (share correct)",
    "exact_match": "exact match (share correct)",
    "perplexity": "perplexity (per token)",
}

Rows = list[dict[str, Any]]
"""What a figure draws: the answer of its query, by column."""
Look = dict[str, Any]
"""How a line looks, in matplotlib's words."""


class Theme:
    """The common facts of all figures of a run; each is looked up when a figure first asks for it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @cached_property
    def selectors(self) -> dict[str, dict[str, Any]]:
        """Line style of each selector and each group of replicates, which look alike; `accuracy` comes first."""
        named = "SELECT DISTINCT selector, coalesce(replicate_of, selector) AS group_name FROM plans ORDER BY ALL"
        groups = {row["selector"]: row["group_name"] for row in rows(self._connection, named)}
        names = sorted({*groups.values()}, key=lambda name: (name != "accuracy", name))
        styles = {
            name: dict(
                color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[(place + 3 * (place // len(MARKERS))) % len(MARKERS)],
                linestyle=DASHES[(place // len(COLOURS) + place) % len(DASHES)],
            )
            for place, name in enumerate(names)
        }
        return styles | {name: styles[group] for name, group in groups.items()}

    @cached_property
    def several_models(self) -> bool:
        """Whether titles must name the model."""
        return bool(
            rows(self._connection, "SELECT count(*) > 1 AS several FROM models")[0]["several"]
        )

    def title(self, model: str, name: str) -> str:
        """Title of a panel; it names the model only if a run has several."""
        return f"{model}: {name}" if self.several_models else name

    def task_title(
        self, group: tuple[Any, ...], groups: Iterable[tuple[Any, ...]], note: str = ""
    ) -> str:
        """Title of a panel of model, calibration and task; it names the task only if the calibration has several."""
        model, calibration, task = group
        single = sum(other[:2] == (model, calibration) for other in groups) == 1
        return self.title(model, (calibration if single else f"{calibration} on {task}") + note)

    def by_selector(self, data: Rows) -> dict[tuple[Any, ...], Rows]:
        """Rows by model and selector, selectors in the order of their styles."""
        order = list(self.selectors)
        groups = grouped(data, "model", "selector")
        return dict(
            sorted(groups.items(), key=lambda entry: (entry[0][0], order.index(entry[0][1])))
        )


def panels(
    n: int, width: float, height: float, columns: int, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A grid of `n` panels of `width` x `height` inches, at most `columns` wide; legends go outside, below."""
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    figure = Figure(figsize=(max(width * columns, 4.5), height * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel().tolist()
    for spare in axes[n:]:
        spare.set_axis_off()
    return figure, axes[:n]


def legend_below(
    figure: Figure, entries: Iterable[tuple[str, Look | Artist]], columns: int = 5
) -> None:
    """One legend for all panels, under them: names with how their lines look, or with the artist to show."""
    labels, looks = zip(*entries, strict=True)
    handles = [look if isinstance(look, Artist) else Line2D([], [], **look) for look in looks]
    fitting = max(
        1,
        min(
            columns,
            len(labels),
            int(figure.get_figwidth() / (0.75 + 0.066 * max(map(len, labels)))),
        ),
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=fitting, handlelength=3)


def colour_bar(
    figure: Figure,
    panels: Any,
    scale: Normalize,
    colours: Colormap,
    label: str,
    shrink: float,
    **shape: Any,
) -> Any:
    """The colour scale of some panels, above them; `shape` goes to matplotlib."""
    shape = {"aspect": 40, "pad": 0.02} | shape
    bar = figure.colorbar(
        ScalarMappable(scale, colours), ax=panels, location="top", shrink=shrink, **shape
    )
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)
    return bar


def lines_down(axes: Axes, names: Sequence[str]) -> None:
    """One line of the panel for each name, from the top down."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)


def matrix(axes: Axes, columns: int, names: Sequence[str]) -> None:
    """Room for a matrix of cells of size 1, with a line for each name."""
    lines_down(axes, names)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.tick_params(length=0)
    axes.grid(False)


def slanted(axes: Axes, places: Sequence[float], names: Sequence[str], angle: int = 40) -> None:
    """Long names under a panel."""
    axes.set_xticks(places, names, rotation=angle, ha="right", rotation_mode="anchor")


def doubling(axes: Axes, sizes: Iterable[int]) -> None:
    """Sizes across, each doubling as wide as the others."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
    axes.set_xticks([], minor=True)


def whole_numbers(axes: Axes, axis: str = "x") -> None:
    """Ticks at whole numbers only: layers and counts."""
    getattr(axes, f"{axis}axis").set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def empty(reason: str) -> Figure:
    """An image that says why there is no figure; `reason` is the note of its question on when it has no answer."""
    figure = Figure(figsize=(7, 1.1), layout="constrained")
    text = f"Nothing to show because {reason.removeprefix('Empty where ')}"
    figure.text(
        0.5, 0.5, textwrap.fill(text, 80), ha="center", va="center", color=NEUTRAL, fontsize=10
    )
    return figure


def looks(names: Iterable[str], size: float) -> dict[str, Look]:
    """Colour and marker of each name, `size` points wide, without a line."""
    return {
        name: dict(
            color=COLOURS[at % len(COLOURS)],
            marker=MARKERS[at % len(MARKERS)],
            linestyle="",
            markersize=size,
        )
        for at, name in enumerate(names)
    }


def repair_name(repair: str, healing: str) -> str:
    """What was done to a pruned model, in a legend or a sentence."""
    return " + ".join(part for part in (repair, healing) if part != "none") or "no repair"


def repairs(data: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The pairs of repair and healing in some rows: none first, then repairs, then healings."""
    pairs = {(row["repair"], row["healing"]) for row in data}
    return sorted(pairs, key=lambda pair: (pair[1] != "none", pair[0] != "none", pair))


def counts(values: Sequence[int | None]) -> str:
    """Sample counts for a caption: one number, or their range."""
    known = sorted({int(value) for value in values if value})
    if not known:
        return "n unknown"
    return f"n = {known[0]:,}" if len(known) == 1 else f"n = {known[0]:,} to {known[-1]:,}"


def metric_scale(axes: Axes, metric: str, values: Sequence[float]) -> None:
    """Label and scale of a benchmark metric's axis: 0 to 1 for accuracies, logarithmic for perplexities far apart."""
    axes.set_ylabel(METRIC_LABELS.get(metric, metric))
    if metric != "perplexity":
        axes.set_ylim(0, 1.02)
    elif max(values) > 10 * min(values):
        axes.set_yscale("log")
        axes.set_ylim(bottom=1)


def svg(figure: Figure, salt: str, caption: str = "") -> str:
    """The figure as SVG text, the same bytes for the same data: it has no date, and `salt` gives the ids.

    The caption becomes the description, which the report reads; a figure without data has no description.
    """
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        buffer = io.StringIO()
        # Laid out here: saving would draw everything once more for it.
        FigureCanvasSVG(figure)
        if figure.axes and (engine := figure.get_layout_engine()):
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(buffer, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", buffer.getvalue())
    # Every figure stands in the report: the root names the fonts, and the grid is within its panel.
    grid = f' clip-path="[^"]*"(?= style="fill: none; stroke: {matplotlib.rcParams["grid.color"]})'
    text = re.sub(rf' transform="rotate\(-0 [^"]*"| font-family: [^;"]*;?|<g/>\n|{grid}', "", text)
    text = re.sub(r" (?:d|x|y)=\"[^\"]*\"|(?:translate|rotate)\([^)]*\)", _rounded, text)
    text = re.sub(rf'<g id="{HINT}([^"]*)">', r"<g><title>\1</title>", text)
    description = f"\n<desc>{html.escape(caption)}</desc>" if caption else ""
    return re.sub(
        r"<svg([^>]*)>",
        lambda head: f'<svg font-family="{FONTS}"{head[1]}>{description}',
        text,
        count=1,
    )


def _rounded(numbers: re.Match[str]) -> str:
    """Coordinates rounded to tenths of a point, which is invisible; curves are small, so to hundredths."""
    places = re.sub(r"(\.\d\d)\d+" if "C" in numbers[0] else r"(\.\d)\d+", r"\1", numbers[0])
    return re.sub(r"\s*([MLCz])\s*", r"\1", places) if places.startswith(" d=") else places


def hint(artist: Artist, text: str) -> None:
    """Show `text` when the pointer rests on `artist` in the SVG."""
    artist.set_gid(HINT + text)


def hints(axes: Axes, points: Iterable[tuple[float, float, str]], size: float = 8) -> None:
    """Show a text when the pointer rests near a point (x, y, text), by invisible marks `size` points wide."""
    for x, y, text in points:
        mark = Line2D(
            [x],
            [y],
            linestyle="",
            marker="o",
            markersize=size,
            markeredgewidth=0,
            alpha=0,
            zorder=9,
        )
        mark.set_in_layout(False)
        hint(axes.add_artist(mark), text)


def reach(stderr: float | None) -> float:
    """Half a 95 % interval; NaN for an unknown error, so that nothing is drawn."""
    return math.nan if stderr is None else Z95 * stderr


def interval(value: float, stderr: float | None, digits: int = 3) -> str:
    """A number with its 95 % interval, for hints."""
    reach = "" if stderr is None else f" ± {Z95 * stderr:.{digits}f}"
    return f"{value:.{digits}f}{reach}".replace("-", "−")
