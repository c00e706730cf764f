"""How relevance changes as layers go: every remaining layer before every removal of an iterative selector."""

import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from lamina.relevance.statistics import wilson_interval
from lamina.report.figures import style
from lamina.report.figures.relevance_maps import ACCURACY, ACCURACY_SCALE, CELL, COSINE, cosine_scale, text_colour

TITLE = "How relevance moves as layers go"
PLACE = 32
TABLES = ("relevance", "plans", "models")
ABOUT = (
    "Relevance of every remaining layer before each removal of an iterative selector, by the metric that it removes "
    "by; outlined: what goes next; crossed: what is gone. At the right the accuracy on the calibration, with half its "
    "95 % interval."
)

QUERIES = ("how_relevance_moves_as_layers_go",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Removals down, layers across; one panel per model, calibration and selector, one scale per metric."""
    groups = style.grouped(data, "model", "calibration", "selector")
    depth = 1 + max(row["layer"] for row in data)
    steps = max(row["size"] for row in data)
    width, height = max(3.4, (0.30 if depth <= 16 else 0.2) * depth + 1.5), 0.27 * steps + 0.95
    figure, grid = style.panels(len(groups), width, height, max(1, int(13 / width)))
    scales = {metric: scale_of(metric, data) for metric in {row["metric"] for row in data}}
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        metric = chosen[0]["metric"]
        lines = list(style.grouped(chosen, "position").values())
        heat(axes, lines, metric, scales[metric])
        for step, line in enumerate(lines):
            place = next(row["layer"] for row in line if row["unit"] == line[0]["goes"])
            axes.add_patch(Rectangle((place - 0.46, step - 0.46), 0.92, 0.92, fill=False, edgecolor="black", lw=1.5))
        axes.set_yticks(range(len(lines)), [str(step) for step in range(len(lines))])
        axes.set(xlabel="layer", ylabel="already removed")
        shares = [(line[0]["accuracy_before"], line[0]["n_before"]) for line in lines]
        accuracy_labels(axes, shares)
        named = "" if metric == group[2] else f" (by {metric})"
        axes.set_title(theme.title(group[0], f"{group[1]}, {group[2]}{named}"))
    scale_bars(figure, grid, scales)
    handles: list[Any] = [
        Patch(facecolor="none", edgecolor="black", linewidth=1.5),
        Line2D([], [], color=style.NEUTRAL, marker="x", linestyle=""),
        Line2D([], [], marker="o", linestyle="", markersize=3.5, markerfacecolor="none", color="black"),
    ]
    style.legend_below(figure, handles, ["goes next", "gone", "95 % interval includes 0"], 3)
    return figure


def scale_of(metric: str, data: list[dict[str, Any]]) -> Normalize:
    """The colour scale of a metric: for accuracy the same in all reports, for others from the measured scores."""
    if metric == "accuracy":
        return ACCURACY_SCALE
    return cosine_scale([row["score"] for row in data if row["metric"] == metric and (row["score"] or 0) > 0])


def colours_of(metric: str) -> Colormap:
    """The colours of a metric; white means that nothing is lost."""
    return ACCURACY if metric == "accuracy" else COSINE


def heat(axes: Axes, lines: list[list[dict[str, Any]]], metric: str, scale: Normalize) -> None:
    """Relevance by line (down) and layer (across). Rings mark intervals that include 0, crosses mark missing layers.

    Numbers are written if there is room for them.
    """
    depth = 1 + max(row["layer"] for line in lines for row in line)
    for y, line in enumerate(lines):
        for layer in sorted(set(range(depth)) - {row["layer"] for row in line}):
            axes.plot(layer, y, "x", color=style.NEUTRAL, markersize=4, markeredgewidth=0.8)
        for row in line:
            if row["score"] is None:
                corner = (row["layer"] - 0.5, y - 0.5)
                bound = row.get("at_least") if depth <= 16 else None
                hatch = "////" if bound is None else ""
                axes.add_patch(Rectangle(corner, 1, 1, facecolor="#dddddd", edgecolor="#888888", hatch=hatch, lw=0))
                if bound is not None:
                    axes.text(row["layer"], y, f"≥{short(bound)}", ha="center", va="center_baseline", fontsize=5)
                continue
            colour = colours_of(metric)(scale(row["score"]))
            axes.add_patch(Rectangle((row["layer"] - 0.5, y - 0.5), 1, 1, facecolor=colour, **CELL))
            ink = text_colour(colour)
            if depth <= 16:
                text = short(row["score"])
                axes.text(row["layer"], y, text, ha="center", va="center_baseline", fontsize=6, color=ink)
            low, high = row["ci_low"], row["ci_high"]
            if low is not None and low <= 0 <= high:
                spot = (row["layer"] + 0.36, y - 0.32) if depth <= 16 else (row["layer"], y)
                axes.plot(*spot, "o", markersize=2.4, markerfacecolor="none", color=ink, markeredgewidth=0.6)
    axes.set(xlim=(-0.5, depth - 0.5), ylim=(len(lines) - 0.5, -0.5))
    axes.set_xticks(range(0, depth, 1 if depth <= 16 else 4))
    axes.tick_params(length=0)
    axes.grid(False)


def short(value: float) -> str:
    """A number with two decimals, .25 for 0.25."""
    text = f"{value:.2f}".replace("-0.00", "0.00")
    return re.sub(r"^(-?)0\.", r"\1.", text).replace("-", "−")


def accuracy_labels(axes: Axes, shares: list[tuple[float | None, int | None]]) -> None:
    """Write the accuracy of each line's model at the right edge, with half its 95 % interval."""
    texts = []
    for share, total in shares:
        low, high = wilson_interval(share * total, total) if share is not None and total else (0.0, 0.0)
        texts.append("" if share is None else f"{share:.2f} ± {(high - low) / 2:.2f}")
    if any(texts):
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(len(texts)), texts, fontsize=6.5)
        right.set_ylabel("accuracy", fontsize=8)
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)


def scale_bars(figure: Figure, grid: list[Axes], scales: dict[str, Normalize]) -> None:
    """One colour bar per metric above the panels."""
    pad = 0.3 / figure.get_figheight()  # so that one's label stands clear of the next
    for metric in sorted(scales, reverse=True):
        lost = "accuracy lost without the layer (share above chance)"
        label = lost if metric == "accuracy" else f"{metric} relevance"
        mappable = ScalarMappable(scales[metric], colours_of(metric))
        bar = figure.colorbar(mappable, ax=grid, location="top", shrink=0.5, aspect=45, pad=pad)
        bar.set_label(label)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_linewidth(0.4)
        if isinstance(scales[metric], LogNorm):
            bar.ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            bar.ax.xaxis.set_major_formatter("{x:g}")
            bar.ax.xaxis.set_minor_locator(NullLocator())


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Relevance of the layers that are left before each removal, by the metric that the selector removes by "
        f"(calibration samples, {style.counts([row['n_samples'] for row in data])} per cell). Outlined: what goes "
        "next; crossed: what is gone; a ring: the 95 % bootstrap interval includes 0. A layer whose colour changes "
        "down its column depends on what went before. Grey: undefined, or, with ≥, what it is at least where budget "
        "exact let the layer leave early. Right: accuracy on the calibration, with half its 95 % interval, "
        "where the selector measures it."
    )
