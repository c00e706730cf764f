"""Maps of relevance with layers across, shared by several figures.

Each row of a map is one measurement of all layers, such as a step of pruning or a checkpoint of a
training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lamina.options.metrics import METRICS
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import relevance_maps, style
from lamina_workflow.report.figures.cells import Cell, choose_scale

MAX_COLUMNS = 2  # columns of panels
MAX_NAMED_ROWS = 24  # a map with more rows names some of them
INCHES_PER_ROW = 0.19
UNKNOWN_COLOUR = "#eeeeee"  # for a layer without a score
LABELS = {  # with units; other metrics use their help
    "accuracy": "accuracy lost (share above chance)",
    "cosine": "1 − cos over the layer",
    "perplexity": "rise of the loss (nats per token)",
}
INCLUDES_ZERO_STYLE: style.LineStyle = {
    "marker": "o",
    "linestyle": "",
    "markersize": 2.2,
    "markerfacecolor": "none",
    "markeredgewidth": 0.6,
    "color": style.NEUTRAL,
}
CHOSEN_STYLE: style.LineStyle = {
    "marker": "s",
    "linestyle": "",
    "markersize": 6,
    "markerfacecolor": "none",
    "markeredgewidth": 1.2,
    "color": "black",
}
HALO_STYLE = CHOSEN_STYLE | {"markeredgewidth": 3, "color": "white"}  # on dark cells
GONE_STYLE: style.LineStyle = {
    "marker": "x",
    "linestyle": "",
    "markersize": 4,
    "color": "#a0a0a0",
}


@dataclass
class LayerMap:
    """One map: the scores of a metric, (rows, layers), with the notes next to its rows."""

    title: str
    metric: str
    scores: np.ndarray
    includes_zero: np.ndarray  # whether the 95 % interval of a score includes 0, (rows, layers)
    row_names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # at the right of each row
    chosen: list[Cell] = field(default_factory=list)  # framed
    gone: list[Cell] = field(default_factory=list)  # crossed out


def build_map(title: str, rows: style.Rows) -> LayerMap:
    """The map of the scores of one metric by step and layer, with the accuracy of each step."""
    rows_by_step = group_rows(rows, "step")
    shape = (len(rows_by_step), 1 + max(row["layer"] for row in rows))
    layer_map = LayerMap(title, rows[0]["metric"], np.full(shape, np.nan), np.zeros(shape, bool))
    for step_index, ((step,), step_rows) in enumerate(rows_by_step.items()):
        layer_map.row_names.append(f"{step:,}")
        layer_map.notes.append(_format_accuracy(step_rows[0]))
        for row in step_rows:
            cell = (step_index, row["layer"])
            if row["score"] is not None:
                layer_map.scores[cell] = row["score"]
            if row["ci_low"] is not None:
                layer_map.includes_zero[cell] = row["ci_low"] <= 0 <= row["ci_high"]
    return layer_map


def _format_accuracy(row: dict[str, Any]) -> str:
    """The accuracy of a step, if removals were measured."""
    if row["accuracy"] is None:
        return ""
    return style.format_interval(row["accuracy"], row["accuracy_stderr"], 2)


def draw_maps(
    maps: Sequence[LayerMap], row_label: str, legend: Sequence[style.LegendEntry]
) -> Figure:
    """All maps; those of one metric share one colour scale, which is above them."""
    maps_by_metric: dict[str, list[LayerMap]] = {}
    for layer_map in maps:
        maps_by_metric.setdefault(layer_map.metric, []).append(layer_map)
    n_columns = min(MAX_COLUMNS, max(len(group) for group in maps_by_metric.values()))
    heights = []
    for group in maps_by_metric.values():
        for first in range(0, len(group), n_columns):
            most_rows = max(len(each.row_names) for each in group[first : first + n_columns])
            heights.append(INCHES_PER_ROW * max(4, most_rows) + 0.95)

    n_layers = max(each.scores.shape[1] for each in maps)
    width = max(3.4, 0.105 * n_layers + 1.9)
    height = sum(heights) + 0.6 * len(maps_by_metric) + 0.4
    figure = Figure(figsize=(max(4.5, width * n_columns), height), layout="constrained")
    grid = figure.subplots(len(heights), n_columns, squeeze=False, height_ratios=heights)

    n_rows_drawn = 0
    for metric, group in maps_by_metric.items():
        n_rows = -(-len(group) // n_columns)
        metric_axes = grid[n_rows_drawn : n_rows_drawn + n_rows].ravel().tolist()
        _draw_metric(figure, metric_axes, metric, group, row_label)
        n_rows_drawn += n_rows
    style.add_legend(figure, legend, 3)
    return figure


def _draw_metric(
    figure: Figure, all_axes: list[Axes], metric: str, maps: list[LayerMap], row_label: str
) -> None:
    if metric == "accuracy":  # as in every map
        colours, scale = relevance_maps.ACCURACY, relevance_maps.ACCURACY_SCALE
    else:
        scores = np.concatenate([each.scores.ravel() for each in maps])
        colours, scale = relevance_maps.COSINE, choose_scale(scores.tolist())
    for axes, layer_map in zip(all_axes, maps, strict=False):
        _draw_map(axes, layer_map, colours, scale)
        axes.set_ylabel(row_label)
    for unused_axes in all_axes[len(maps) :]:
        unused_axes.set_axis_off()
    label = LABELS.get(metric) or f"{metric}: {METRICS[metric].help}"
    if isinstance(scale, LogNorm):
        label += ", log scale"
    bar = style.add_colour_bar(figure, all_axes[: len(maps)], scale, colours, label, 0.6)
    if not isinstance(scale, LogNorm):
        bar.ax.xaxis.set_major_locator(MaxNLocator(5))


def _draw_map(axes: Axes, layer_map: LayerMap, colours: Colormap, scale: Normalize) -> None:
    n_rows, n_layers = layer_map.scores.shape
    axes.set_facecolor(UNKNOWN_COLOUR)
    axes.imshow(
        np.ma.masked_invalid(layer_map.scores),
        aspect="auto",
        cmap=colours,
        norm=scale,
        interpolation="none",
    )
    style.set_matrix_axes(axes, n_layers, layer_map.row_names)
    if layer_map.metric == "accuracy":
        _mark_cells(axes, np.argwhere(layer_map.includes_zero)[:, ::-1], INCLUDES_ZERO_STYLE)
    _mark_cells(axes, layer_map.gone, GONE_STYLE)
    _mark_cells(axes, layer_map.chosen, HALO_STYLE)
    _mark_cells(axes, layer_map.chosen, CHOSEN_STYLE)

    step = -(-n_rows // MAX_NAMED_ROWS)
    named_rows = range(0, n_rows, step)
    axes.set_yticks(named_rows, [layer_map.row_names[row] for row in named_rows])
    right_axis = axes.secondary_yaxis("right")
    right_axis.set_yticks(named_rows, [layer_map.notes[row] for row in named_rows], fontsize=6.5)
    right_axis.spines["right"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=12))
    axes.set_xlabel("layer (0 = first)")
    axes.set_title(layer_map.title)


def _mark_cells(axes: Axes, cells: Sequence[Cell] | np.ndarray, marker: style.LineStyle) -> None:
    """One mark in the middle of each cell (column, row)."""
    if len(cells):
        columns, rows = np.array(cells).T
        axes.plot(columns, rows, **marker)
