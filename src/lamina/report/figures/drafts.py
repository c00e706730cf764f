"""Variants as drafts of their own base: how often the base accepts a drafted token, and how fast decoding then is."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style
from lamina.report.figures.repair_bars import repair_name

TITLE = "Drafts that lose nothing"
PLACE = 88
TABLES = ("drafts", "plans", "models")
ABOUT = (
    "Acceptance of drafted tokens and speed of base and draft together against the base alone, by the share of layers "
    "removed, with 95 % intervals over prompts."
)

QUERIES = ("how_drafts_fare",)
MEASURES = (("acceptance", "acceptance"), ("speedup", "speed-up"))


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels, acceptance and speed, per model, calibration and decoding; a line per selector and repair."""
    groups = list(dict.fromkeys((row["model"], row["calibration"], row["decoding"]) for row in data))
    selectors = theme.selectors
    repairs = sorted({repair_name(row["repair"], row["healing"]) for row in data}, key=lambda n: (n != "pruned", n))
    figure, grid = style.panels(2 * len(groups), 3.1, 2.7, 4)
    for place, axes in enumerate(grid):
        group, (column, label) = groups[place // 2], MEASURES[place % 2]
        mine = [row for row in data if (row["model"], row["calibration"], row["decoding"]) == group]
        lines = _lines(mine, selectors, repairs)
        for number, (line, look) in enumerate(lines):
            reach = [style.reach(row[f"{column}_stderr"]) for row in line]
            # Lines stand beside each other, or equal ones would hide all but one.
            shift = 0.4 * (number - (len(lines) - 1) / 2)
            places, values = [100 * row["share"] + shift for row in line], [row[column] for row in line]
            axes.errorbar(places, values, reach, markersize=4.5, elinewidth=1, **look)
            style.hints(axes, [(x, row[column], _hint(row)) for x, row in zip(places, line, strict=True)])
        if column == "acceptance":
            known = {(100 * row["share"], row["break_even"]) for row in mine if row["break_even"] is not None}
            axes.plot(*zip(*sorted(known), strict=True) if known else ((), ()), "_", color="#999999")
            axes.set_ylim(0, 1.02)
        else:
            axes.axhline(1, color="#999999", linestyle="--", linewidth=0.9)
        axes.set_title(theme.title(group[0], f"{group[1]}, {group[2]}"))
        axes.set(xlabel="layers removed (%)", ylabel=label)
    shown = [name for name in selectors if any(row["selector"] == name for row in data)]
    handles = [Line2D([], [], color=selectors[name]["color"]) for name in shown]
    handles += [Line2D([], [], color="black", **_repair_look(place)) for place in range(len(repairs))]
    handles.append(Line2D([], [], color="#999999", marker="_", linestyle=""))
    style.legend_below(figure, handles, [*shown, *repairs, "acceptance that pays"], 6)
    return figure


def _lines(data: list[dict[str, Any]], selectors: dict[str, dict[str, Any]], repairs: list[str]) -> list[Any]:
    """The rows of each selector and repair, with their look."""
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in data:
        lines.setdefault((row["selector"], repair_name(row["repair"], row["healing"])), []).append(row)
    return [
        (line, {"color": selectors[selector]["color"], **_repair_look(repairs.index(repair))})
        for (selector, repair), line in lines.items()
    ]


def _repair_look(place: int) -> dict[str, Any]:
    return {
        "marker": style.MARKERS[place % len(style.MARKERS)],
        "linestyle": style.DASHES[place % len(style.DASHES)],
    }


def _hint(row: dict[str, Any]) -> str:
    parts = [
        f"{row['selector']}, {repair_name(row['repair'], row['healing'])}, {row['removed']} removed: acceptance "
        f"{style.interval(row['acceptance'], row['acceptance_stderr'])}",
        f"{style.interval(row['tokens_per_round'], row['tokens_per_round_stderr'], 2)} tokens a round",
    ]
    if row["speedup"] is not None:
        parts.append(f"speed-up {style.interval(row['speedup'], row['speedup_stderr'], 2)}")
    return f"{', '.join(parts)}, n = {row['n_samples']} prompts"


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    first = data[0]
    return (
        f"A variant drafts {style.counts([row['draft'] for row in data]).removeprefix('n = ')} tokens, the base reads "
        "them in one pass and keeps those that it would have written: the output is the base's. Acceptance: chance "
        "that a drafted token is kept, greedy or sampled; grey marks are the acceptance at which a round gives as many "
        "tokens as it costs, and there are none where no acceptance would do. Speed-up: time per token of the base "
        "alone over that of both, measured in turn, above 1 is faster. 95 % intervals over prompts "
        f"({style.counts([row['n_samples'] for row in data])}), {first['dtype']} on {first['device']}."
    )
