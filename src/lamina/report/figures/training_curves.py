"""How healing went: training and validation loss against the optimiser step."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "How healing went"
PLACE = 80
TABLES = ("training", "plans", "models")
QUERIES = ("how_healing_went",)
BINS = 8
DASHES: Any = ("--", "-")  # with a patch, and without
KEPT: dict[str, Any] = {
    "marker": "*",
    "markersize": 10,
    "markeredgecolor": "black",
    "markeredgewidth": 0.6,
}


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration, size and healing; one line per selector, dashed if a patch was applied first."""
    groups = style.grouped(data, "model", "calibration", "removed", "healing")
    styles = theme.selectors
    figure, grid = style.panels(len(groups), 3.5, 2.7, 3)
    for axes, ((model, calibration, removed, healing), chosen) in zip(
        grid, groups.items(), strict=True
    ):
        panel(axes, chosen, styles)
        axes.set_title(theme.title(model, f"{calibration}, {removed} removed, {healing}"))
    runs = list(dict.fromkeys((row["selector"], row["repair"]) for row in data))
    entries = [
        (
            selector if repair == "none" else f"{selector} + {repair}",
            {"linestyle": DASHES[repair == "none"], **points(styles, selector, repair)},
        )
        for selector, repair in runs
    ]
    star = {"color": style.NEUTRAL, "linestyle": "", **KEPT}
    style.legend_below(figure, [*entries, ("weights kept", star)], 4)
    return figure


def points(styles: dict[str, style.Look], selector: str, repair: str) -> dict[str, Any]:
    """Marker of a run: that of its selector, open if a patch was applied first."""
    colour = styles[selector]["color"]
    inside = colour if repair == "none" else "white"
    return {
        "color": colour,
        "marker": styles[selector]["marker"],
        "markersize": 4.5,
        "markerfacecolor": inside,
    }


def panel(axes: Axes, data: style.Rows, styles: dict[str, style.Look]) -> None:
    """Training loss as means of consecutive steps with the 95 % band of the mean; validation as points."""
    for (selector, repair), curve in style.grouped(data, "selector", "repair").items():
        look = {"color": styles[selector]["color"]}
        trained = [row for row in curve if row["loss"] is not None]
        parts = [
            part
            for part in np.array_split(np.arange(len(trained)), min(BINS, len(trained) or 1))
            if len(part)
        ]
        losses = [np.array([trained[place]["loss"] for place in part]) for part in parts]
        x = [float(np.mean([trained[place]["step"] for place in part])) for part in parts]
        mean = np.array([part.mean() for part in losses])
        reach = np.array(
            [
                Z95 * part.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else 0.0
                for part in losses
            ]
        )
        axes.plot(x, mean, linestyle=DASHES[repair == "none"], linewidth=1.2, **look)
        axes.fill_between(x, mean - reach, mean + reach, alpha=0.18, linewidth=0, **look)
        checked = [row for row in curve if row["validation_loss"] is not None]
        kept = [row for row in checked if row["chosen"]]
        for rows, drawn in ((checked, points(styles, selector, repair)), (kept, look | KEPT)):
            axes.plot(
                [row["step"] for row in rows],
                [row["validation_loss"] for row in rows],
                linestyle="",
                **drawn,
            )
    axes.set(xlabel="optimiser step", ylabel="loss (nats per token)")


def caption(data: style.Rows) -> str:
    lines = style.grouped(
        data, "model", "calibration", "selector", "removed", "repair", "healing"
    ).values()
    steps = [sum(row["loss"] is not None for row in line) for line in lines]
    rising = [max(line, key=lambda row: row["learning_rate"] or 0)["step"] for line in lines]
    return (
        f"Healing of pruned (solid) and patched (dashed) variants. Lines: mean training loss of up to {BINS} groups "
        f"of consecutive steps, with the 95 % interval of the mean ({style.counts(steps)} logged steps per line). The "
        f"learning rate rises over {style.counts(rising).removeprefix('n = ')} of them, a tenth at most. Points: loss "
        "on validation samples (open: patched); the star marks the weights that were kept."
    )
