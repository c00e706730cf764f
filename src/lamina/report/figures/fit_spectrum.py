"""The kind of linear map that replaces a run of layers: its singular values, and how much of it is anti-symmetric."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style

TITLE = "What kind of map a repair is"
PLACE = 56
TABLES = ("patches", "models")
ABOUT = (
    "Singular values of each repair's map M, as shares of the largest, and the share of its squared norm in the "
    "anti-symmetric part, which no symmetric map can reach."
)

QUERIES = ("what_kind_of_map_a_repair_is",)
POINTS = 60  # of a spectrum, else a figure of a large model has a hundred thousand


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per calibration: spectra by repair, one line per run; shares and effective ranks by run."""
    groups = style.grouped(data, "model", "calibration")
    repairs = sorted({row["repair"] for row in data})
    figure, grid = style.panels(2 * len(groups), 3.4, 2.7, 4 if len(groups) > 1 else 2)
    for number, ((model, calibration), chosen) in enumerate(groups.items()):
        spectra(grid[2 * number], chosen, repairs)
        shares(grid[2 * number + 1], chosen, repairs)
        for axes, what in ((grid[2 * number], "spectrum"), (grid[2 * number + 1], "anti-symmetry")):
            axes.set_title(theme.title(model, f"{calibration}: {what}"))
    handles = [Line2D([], [], **look(place)) for place in range(len(repairs))]
    style.legend_below(figure, handles, repairs)
    return figure


def look(place: int) -> dict[str, Any]:
    """Line and marker of a repair."""
    return dict(
        color=style.COLOURS[place % len(style.COLOURS)],
        marker=style.MARKERS[place % len(style.MARKERS)],
        linestyle=style.DASHES[place % len(style.DASHES)],
        markersize=4,
    )


def spectra(axes: Axes, data: list[dict[str, Any]], repairs: list[str]) -> None:
    """Singular values in falling order, as shares of the largest, against their place as a share of C."""
    for row in data:
        values = np.array(row["singular_values"])
        if values[0] <= 0:
            continue
        place = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
        style_of = look(repairs.index(row["repair"])) | dict(marker="", linewidth=0.9, alpha=0.75)
        # What is below rounding is none: a map of limited rank ends there.
        shown = np.where(values > 1e-6 * values[0], values / values[0], np.nan)
        axes.plot((place + 1) / len(values), shown[place], **style_of)
    axes.set(yscale="log", xlabel="place, as a share of C", ylabel="singular value of M / largest", xlim=(0, 1))


def shares(axes: Axes, data: list[dict[str, Any]], repairs: list[str]) -> None:
    """Anti-symmetric share by run; a matrix of independent entries has one half."""
    runs = list(dict.fromkeys((row["start"], row["end"]) for row in data))
    axes.axhline(0.5, color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1)
    axes.text(0.02, 0.52, "independent entries", fontsize=7, color=style.NEUTRAL, transform=axes.get_yaxis_transform())
    for place, name in enumerate(repairs):
        chosen = [row for row in data if row["repair"] == name]
        spots = [runs.index((row["start"], row["end"])) for row in chosen]
        axes.plot(spots, [row["antisymmetric_share"] for row in chosen], **look(place) | dict(linestyle=""))
    names = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in runs]
    axes.set_xticks(range(len(runs)), names, rotation=90 if len(runs) > 10 else 0)
    axes.grid(False, axis="x")
    axes.set(xlabel="layers removed", ylabel="anti-symmetric share of ‖M‖²", ylim=(-0.03, 1))


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    ranks = [
        f"{name} {min(effective):.0f} to {max(effective):.0f}"
        for name in sorted({row["repair"] for row in data})
        if (effective := [row["effective_rank"] for row in data if row["repair"] == name])
    ]
    return (
        "The map h → h + hM that each repair puts in the place of a run. Left: singular values of M, one line per run; "
        f"effective rank of {', '.join(ranks)} of {len(data[0]['singular_values'])}. Right: share of ‖M‖² "
        "that no symmetric map can reach; dotted: one half, that of a matrix of independent entries. "
        f"Fitted on {style.counts([row['n_samples'] for row in data])} samples; one fit each, so without intervals."
    )
