"""The common style of all figures: fonts, distinguishable colours, panels, legends, SVG."""

import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import duckdb
import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from lamina.relevance.statistics import Z95, wilson_interval
from lamina_workflow.report.answers import group_rows, query_rows

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titley": 1.0,  # nothing is above a panel, and searching for it takes time
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
        "xtick.major.size": 0,  # the grid shows positions; a large study has thousands of ticks
        "ytick.major.size": 0,
        "figure.facecolor": "white",
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",  # a page with an outline of every letter opens slowly
    }
)

HINT_PREFIX = "hint:"  # begins the id of an artist with text under the pointer
# Figures are laid out for the first font. The second one has the same widths, and the others are
# narrower.
FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"

# Okabe and Ito's colours without yellow, which is invisible on white. Markers and dashes also
# distinguish the lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)), (0, (3, 3)))
NEUTRAL = "#555555"
BASE_MODEL = "#999999"  # lines of the base model
CHANCE_STYLE: dict[str, Any] = {"color": NEUTRAL, "linestyle": (0, (1, 1.5))}
METRIC_LABELS = {
    "acc": "acc (share correct)",
    "acc_norm": "acc_norm (share correct)",
    "exact_match": "exact match (share correct)",
    "perplexity": "perplexity (per token)",
}

Rows = list[dict[str, Any]]
"""The rows that a figure draws, by column: the answer to its query."""
LineStyle = dict[str, Any]
"""Keyword arguments of matplotlib for a line and its markers."""
LegendEntry = tuple[str, LineStyle | Artist]
"""A name, and the look of its line or the artist to show."""


class Theme:
    """What all figures of a run share, computed on first use."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @cached_property
    def selector_styles(self) -> dict[str, LineStyle]:
        """The line style of each selector and of each group of replicates.

        Replicates share a style; `accuracy` comes first.
        """
        query = """SELECT DISTINCT selector, coalesce(replicate_of, selector) AS group_name
            FROM plans ORDER BY ALL"""
        groups = {row["selector"]: row["group_name"] for row in query_rows(self._connection, query)}
        group_names = sorted(set(groups.values()), key=lambda name: (name != "accuracy", name))
        group_styles = {name: _line_style(index) for index, name in enumerate(group_names)}
        selector_styles = {selector: group_styles[group] for selector, group in groups.items()}
        return group_styles | selector_styles

    @cached_property
    def has_several_models(self) -> bool:
        """Whether titles must name the model."""
        (row,) = query_rows(self._connection, "SELECT count(*) > 1 AS several FROM models")
        return bool(row["several"])

    def format_title(self, model: str, name: str) -> str:
        """The title of a panel; it names the model only if a run has several."""
        return f"{model}: {name}" if self.has_several_models else name

    def format_task_title(
        self, group: tuple[Any, ...], groups: Iterable[tuple[Any, ...]], note: str = ""
    ) -> str:
        """The title of a panel for a model, calibration and task.

        It names the task only if the calibration has panels of several tasks.
        """
        model, calibration, task = group
        n_tasks = sum(other[:2] == (model, calibration) for other in groups)
        title_name = calibration if n_tasks == 1 else f"{calibration} on {task}"
        return self.format_title(model, title_name + note)

    def group_by_selector(self, data: Rows) -> dict[tuple[Any, ...], Rows]:
        """Rows by model and selector; the selectors are in the order of their styles."""
        order = list(self.selector_styles)
        groups = group_rows(data, "model", "selector")
        keys = sorted(groups, key=lambda key: (key[0], order.index(key[1])))
        return {key: groups[key] for key in keys}


def _line_style(index: int) -> LineStyle:
    """Colour, marker and dashes of a line; no combination repeats within 64 lines."""
    n_rounds = index // len(COLOURS)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + 3 * n_rounds) % len(MARKERS)],
        "linestyle": DASHES[(n_rounds + index) % len(DASHES)],
    }


def count_most(groups: Iterable[Rows], key: Callable[[dict[str, Any]], object]) -> int:
    """The largest number of different keys among the rows of one group."""
    key_counts = []
    for group in groups:
        key_counts.append(len({key(row) for row in group}))
    return max(key_counts)


def make_panels(
    n_panels: int, width: float, height: float, max_columns: int, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A grid of panels of `width` x `height` inches; legends are added outside, below."""
    n_columns = min(max_columns, n_panels)
    n_rows = math.ceil(n_panels / n_columns)
    figure_size = (max(width * n_columns, 4.5), height * n_rows + 0.6)
    figure = Figure(figsize=figure_size, layout="constrained")
    axes_grid = figure.subplots(n_rows, n_columns, squeeze=False, sharey=sharey)
    all_axes = axes_grid.ravel().tolist()
    for unused_axes in all_axes[n_panels:]:
        unused_axes.set_axis_off()
    return figure, all_axes[:n_panels]


def add_legend(figure: Figure, entries: Iterable[LegendEntry], max_columns: int = 5) -> None:
    """One legend for all panels, below them."""
    entry_labels = []
    entry_handles: list[Artist] = []
    for label, look in entries:
        entry_labels.append(label)
        entry_handles.append(look if isinstance(look, Artist) else Line2D([], [], **look))
    longest_label = max(len(label) for label in entry_labels)
    n_fitting = int(figure.get_figwidth() / (0.75 + 0.066 * longest_label))
    n_columns = max(1, min(max_columns, len(entry_labels), n_fitting))
    figure.legend(
        entry_handles, entry_labels, loc="outside lower center", ncols=n_columns, handlelength=3
    )


def add_colour_bar(
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
    mappable = ScalarMappable(scale, colours)
    bar = figure.colorbar(mappable, ax=panels, location="top", shrink=shrink, **shape)
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)
    if isinstance(scale, LogNorm):
        set_log_ticks(bar.ax.xaxis)
    return bar


def set_log_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def set_row_names(axes: Axes, names: Sequence[str]) -> None:
    """Label one row of the panel for each name, from the top down."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)


def set_matrix_axes(axes: Axes, n_columns: int, row_names: Sequence[str]) -> None:
    """Room for a matrix of cells of size 1, with a row for each name."""
    set_row_names(axes, row_names)
    axes.set_xlim(-0.5, n_columns - 0.5)
    axes.tick_params(length=0)
    axes.grid(False)


def set_slanted_names(
    axes: Axes, positions: Sequence[float], names: Sequence[str], angle: int = 40
) -> None:
    """Write long names at a slant below a panel."""
    axes.set_xticks(positions, names, rotation=angle, ha="right", rotation_mode="anchor")


def set_doubling_scale(axes: Axes, sizes: Iterable[int]) -> None:
    """Sizes on a logarithmic x axis, with a tick at each."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
    axes.set_xticks([], minor=True)


def set_integer_ticks(axes: Axes, axis: str = "x") -> None:
    """Ticks at whole numbers only: layers and counts."""
    locator = MaxNLocator(integer=True, min_n_ticks=1)
    getattr(axes, f"{axis}axis").set_major_locator(locator)


def set_metric_scale(axes: Axes, metric: str, values: Sequence[float]) -> None:
    """Label and scale of a benchmark metric.

    The axis of scores such as accuracies goes from 0 to 1; perplexities far apart are on a
    logarithmic scale.
    """
    axes.set_ylabel(METRIC_LABELS.get(metric, metric))
    if metric == "perplexity":
        if max(values) > 10 * min(values):
            axes.set_yscale("log")
            axes.set_ylim(bottom=1)
    elif all(0 <= value <= 1 for value in values):
        axes.set_ylim(0, 1.02)


def draw_empty(reason: str) -> Figure:
    """An image that says why there is no figure.

    `reason` is the query's note on when it has no answer.
    """
    figure = Figure(figsize=(7, 1.1), layout="constrained")
    text = f"Nothing to show because {reason.removeprefix('Empty where ')}"
    lines = textwrap.fill(text, 80)
    figure.text(0.5, 0.5, lines, ha="center", va="center", color=NEUTRAL, fontsize=10)
    return figure


def assign_markers(names: Iterable[str], size: float) -> dict[str, LineStyle]:
    """Colour and marker of each name, `size` points wide, without a line."""
    markers = {}
    for index, name in enumerate(names):
        markers[name] = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": "",
            "markersize": size,
        }
    return markers


def list_repairs(data: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The pairs of repair and healing in some rows.

    The pair without either comes first, then repairs alone, then healings.
    """
    pairs = {(row["repair"], row["healing"]) for row in data}
    return sorted(pairs, key=lambda pair: (pair[1] != "none", pair[0] != "none", pair))


def format_repair(repair: str, healing: str) -> str:
    """What was done to a pruned model, in a legend or a sentence."""
    return " + ".join(name for name in (repair, healing) if name != "none") or "no repair"


def format_counts(values: Iterable[int | None]) -> str:
    """Sample counts for a caption: one number, or their range."""
    counts = sorted({int(value) for value in values if value})
    if not counts:
        return "n unknown"
    if len(counts) == 1:
        return f"n = {counts[0]:,}"
    return f"n = {counts[0]:,} to {counts[-1]:,}"


def compute_half_width(stderr: float | None) -> float:
    """Half the width of a 95 % interval; NaN for an unknown error, so that nothing is drawn."""
    return math.nan if stderr is None else Z95 * stderr


def find_reach(value: float, stderr: float | None, n_samples: int | None) -> tuple[float, float]:
    """How far a 95 % interval reaches below and above a value, as lengths of an error bar.

    If no answer or every answer is right, the standard error is unknown or wrongly 0, so Wilson's
    interval is used. NaN for any other unknown error, so that nothing is drawn.
    """
    if n_samples and value in (0.0, 1.0) and not stderr:
        low, high = wilson_interval(value * n_samples, n_samples)
        return max(0.0, value - low), max(0.0, high - value)
    half_width = compute_half_width(stderr)
    return half_width, half_width


def stack_reaches(reaches: Iterable[tuple[float, float]]) -> list[list[float]]:
    """Reaches of points in matplotlib's form: all below, then all above."""
    below, above = zip(*reaches, strict=True)
    return [list(below), list(above)]


def format_interval(value: float, stderr: float | None, digits: int = 3) -> str:
    """A number with its 95 % interval."""
    half_width = "" if stderr is None else f" ± {Z95 * stderr:.{digits}f}"
    return with_minus_signs(f"{value:.{digits}f}{half_width}")


def with_minus_signs(text: str) -> str:
    """The text with a minus sign in place of every hyphen."""
    return text.replace("-", "−")


def add_hint(artist: Artist, text: str) -> None:
    """Show `text` when the pointer rests on `artist` in the SVG."""
    artist.set_gid(HINT_PREFIX + text)


def add_hints(axes: Axes, points: Iterable[tuple[float, float, str]]) -> None:
    """Show texts when the pointer rests near points (x, y, text), using invisible marks."""
    for x, y, text in points:
        mark = Line2D(
            [x],
            [y],
            linestyle="",
            marker="o",
            markersize=8,
            markeredgewidth=0,
            alpha=0,
            zorder=9,
        )
        mark.set_in_layout(False)
        add_hint(axes.add_artist(mark), text)


def render_svg(figure: Figure, salt: str, caption: str = "") -> str:
    """The figure as SVG text, the same bytes for the same data.

    It contains no date, and `salt` determines the ids.

    The caption becomes the description, which the report reads. A figure without data has no
    description.
    """
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        svg_buffer = io.StringIO()
        # The layout is done here: saving would draw everything again for it.
        FigureCanvasSVG(figure)
        if figure.axes and (engine := figure.get_layout_engine()):
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(svg_buffer, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    svg_text = _shorten_svg(svg_buffer.getvalue())
    svg_text = re.sub(rf'<g id="{HINT_PREFIX}([^"]*)">', r"<g><title>\1</title>", svg_text)
    description = f"\n<desc>{html.escape(caption)}</desc>" if caption else ""
    svg_tag = re.search(r"<svg([^>]*)>", svg_text)
    assert svg_tag is not None
    root_tag = f'<svg font-family="{FONTS}"{svg_tag[1]}>{description}'
    return svg_text[: svg_tag.start()] + root_tag + svg_text[svg_tag.end() :]


def _shorten_svg(svg_text: str) -> str:
    """The same picture in fewer bytes, since every figure is part of the report."""
    svg_text = re.sub(r"[ \t]*\n[ \t]*", "\n", svg_text)
    # The root element names the fonts, and the grid lies within its panel.
    no_rotation = r' transform="rotate\(-0 [^"]*"'
    font_pattern = r' font-family: [^;"]*;?'
    empty_group = r"<g/>\n"
    grid_style = f'style="fill: none; stroke: {matplotlib.rcParams["grid.color"]}'
    grid_clip = f' clip-path="[^"]*"(?= {grid_style})'
    svg_text = re.sub("|".join([no_rotation, font_pattern, empty_group, grid_clip]), "", svg_text)
    coordinate_pattern = r" (?:d|x|y)=\"[^\"]*\"|(?:translate|rotate)\([^)]*\)"
    return re.sub(coordinate_pattern, _round_coordinates, svg_text)


def _round_coordinates(match: re.Match[str]) -> str:
    """Round coordinates to tenths of a point, which is invisible.

    Coordinates of curves are rounded to hundredths, because curves are small.
    """
    coordinate_text = match[0]
    surplus_digits = r"(\.\d\d)\d+" if "C" in coordinate_text else r"(\.\d)\d+"
    coordinate_text = re.sub(surplus_digits, r"\1", coordinate_text)
    if coordinate_text.startswith(" d="):
        coordinate_text = re.sub(r"\s*([MLCz])\s*", r"\1", coordinate_text)
    return coordinate_text
