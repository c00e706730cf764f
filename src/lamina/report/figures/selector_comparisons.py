"""Every selector against every other one at equal size and repair: mean differences with intervals."""

from typing import Any

import duckdb
from matplotlib.figure import Figure

from lamina.report.answers import answer
from lamina.report.figures import style

TITLE = "Which selector wins"
PLACE = 45
TABLES = ("comparisons", "models")
LEVEL = 0.05

NEEDS = {"selectors": 2, "tasks": 1}
QUERIES = ("which_selector_wins",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, one row per repair and pair, one mark per size."""
    groups = style.grouped(data, "model")
    rows = {model: list(dict.fromkeys(map(_label, chosen))) for (model,), chosen in groups.items()}
    sizes = sorted({row["removed"] for row in data})
    looks = style.looks([f"{size} removed" for size in sizes], 4.5)
    height = 0.8 + 0.1 * max(map(len, rows.values())) * (1 + len(sizes))
    figure, grid = style.panels(len(groups), 8, height, 1)
    for axes, ((model,), chosen) in zip(grid, groups.items(), strict=True):
        axes.axvline(0, color=style.NEUTRAL, linewidth=0.9)
        for row in chosen:
            at = rows[model].index(_label(row)) + 0.8 * (
                (sizes.index(row["removed"]) + 0.5) / len(sizes) - 0.5
            )
            ends = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
            inside, look = (
                None if row["p_holm"] < LEVEL else "white",
                looks[f"{row['removed']} removed"],
            )
            axes.errorbar(row["difference"], at, xerr=ends, capsize=2, mfc=inside, **look)
        axes.set_title(theme.title(model, "difference of accuracy"))
        axes.set_xlabel("points of accuracy")
        style.lines_down(axes, rows[model])
    style.legend_below(figure, looks.items())
    return figure


def _label(row: dict[str, Any]) -> str:
    return (
        f"{style.repair_name(row['repair'], row['healing'])}:  {row['selector']} − {row['rival']}"
    )


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Pairs with a mean over tasks, in points of accuracy."""
    rows = [row for row in answer(connection, QUERIES[0]) if row["difference"] is not None]
    points = {"difference": "difference", "low": "ci_low", "high": "ci_high"}
    return [row | {name: 100 * row[column] for name, column in points.items()} for row in rows]


def caption(data: style.Rows) -> str:
    return (
        "First selector less the second, mean over the calibrations' own tasks, on the same test documents "
        f"({style.counts([row['n_samples'] for row in data])} of all tasks); right of 0 the first is better. Lines: "
        "95 % intervals of each pair alone. Filled: told apart at 5 % by flipping the signs of documents' differences, "
        "corrected for the pairs of the same size and repair (Holm); hollow: not told apart."
    )
