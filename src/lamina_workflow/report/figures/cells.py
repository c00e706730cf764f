"""Matrix cells with a number on a coloured background, which several figures draw."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.patches import Rectangle

# A cell lies within its panel, so it needs neither clipping nor a place in the layout.
CELL_STYLE: dict[str, Any] = {
    "edgecolor": "white",
    "linewidth": 0.5,
    "clip_on": False,
    "in_layout": False,
}

Cell = tuple[int, int]  # column and row


def draw_number_cell(
    axes: Axes, cell: Cell, value: float, text: str, colours: Colormap, scale: Normalize
) -> Rectangle:
    """Fill a cell with the colour of `value` and write `text` on it."""
    column, row = cell
    colour = colours(scale(value))
    square = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, **CELL_STYLE)
    axes.add_patch(square)
    font_size = 5 if "\n" in text else 6.5
    number = axes.text(
        column,
        row,
        text,
        ha="center",
        va="center_baseline",
        fontsize=font_size,
        color=choose_text_colour(colour),
    )
    number.set_in_layout(False)
    return square


def choose_scale(values: Iterable[float]) -> Normalize:
    """From 0 to the largest value; logarithmic if that is much larger than the median."""
    positive_values = [value for value in values if value > 0]
    if not positive_values:
        return Normalize(0, 1)
    least = min(positive_values)
    largest = max(positive_values)
    if largest > 6 * float(np.median(positive_values)) and least < largest:
        return LogNorm(least, largest, clip=True)
    return Normalize(0, largest)


def choose_text_colour(background: tuple[float, ...]) -> str:
    """Black or white, whichever reads better on `background` (RGB), by its luma."""
    luma = 0.299 * background[0] + 0.587 * background[1] + 0.114 * background[2]
    return "black" if luma > 0.55 else "white"
