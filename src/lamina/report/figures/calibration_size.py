"""How many samples a ranking of layers needs: how alike two calibrations of the same size rank layers, by metric."""

import duckdb
import pyarrow.compute as pc
from matplotlib.figure import Figure

from lamina.config import metrics as registry
from lamina.relevance.columns import Context, from_table
from lamina.relevance.stability import stability
from lamina.report.answers import answer_table, rows
from lamina.report.figures import style

TITLE = "How many samples a ranking takes"
PLACE = 26
TABLES = ("relevance", "sweeps", "calibrations", "models")
METRICS = (
    "accuracy",
    "margin",
    "perplexity",
    "cosine",
)  # what a few samples tell, and what they do not
LOOKS: dict[str, style.Look] = {
    name: dict(
        color=style.COLOURS[at], marker=style.MARKERS[at], linestyle=style.DASHES[at], markersize=4
    )
    for at, name in enumerate(METRICS)
}
QUERIES = ("what_samples_say_of_layers",)
# Of which calibrations what every sample says of every layer is known, by metric.
_RANKINGS = """SELECT DISTINCT model, calibration, metric, chance_accuracy, choice_score
    FROM relevance JOIN calibrations USING (model, calibration)
    WHERE selector = 'base' AND removed = 0 AND component = 'layer' AND score IS NOT NULL
    ORDER BY model, calibration, metric"""


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and calibration, one line per metric."""
    groups = style.grouped(data, "model", "calibration")
    figure, grid = style.panels(len(groups), 3.1, 2.6, 4)
    for axes, ((model, calibration), points) in zip(grid, groups.items(), strict=True):
        for place, metric in enumerate(METRICS):
            line = [row for row in points if row["metric"] == metric]
            # Side by side, or bars would hide each other.
            x = [row["n_samples"] * 1.05 ** (place - 1.5) for row in line]
            reach = [
                [row["median"] - row["low"] for row in line],
                [row["high"] - row["median"] for row in line],
            ]
            middle = [row["median"] for row in line]
            axes.errorbar(x, middle, reach, linewidth=1.2, elinewidth=0.9, **LOOKS[metric])
        style.doubling(axes, (row["n_samples"] for row in data))
        axes.set_ylim(-0.25, 1.03)
        axes.set(xlabel="calibration samples", ylabel="rank correlation")
        axes.set_title(theme.title(model, calibration))
    drawn = {row["metric"] for row in data}
    style.legend_below(figure, [entry for entry in LOOKS.items() if entry[0] in drawn])
    return figure


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """The points of all panels; `n_samples` is the size of each calibration of a pair."""
    # With the scores among its tables, the figure also follows an edit to a metric, which it imports by name.
    points: style.Rows = []
    for group, asked in style.grouped(rows(connection, _RANKINGS), "model", "calibration").items():
        model, calibration = group
        context = Context.from_calibration(asked[0])
        table = answer_table(connection, QUERIES[0], model=model, calibration=calibration)
        for name in (row["metric"] for row in asked if row["metric"] in METRICS):
            # Several passes may have been run: the rows that hold the metric count.
            column = table[registry.METRICS[name].columns[0]].cast("double")
            held = pc.if_else(pc.equal(table["unit"], "none"), table["nll"], column)
            columns = from_table(table.filter(pc.is_valid(held)))
            for size, (median, low, high) in stability(columns, name, context):
                place = dict(model=model, calibration=calibration, metric=name, n_samples=size)
                points.append(place | dict(median=median, low=low, high=high))
    return points


def caption(data: style.Rows) -> str:
    return (
        "Two calibrations of a size that share no sample, drawn from one "
        f"({style.counts([row['n_samples'] for row in data])} samples each): Spearman's correlation over the base "
        "model's layers of the relevance that they find. Median of 200 drawn pairs; bars hold 95 % of them, too narrow "
        "at the largest size, where all pairs are made of the same samples. A line that still rises at its end wants "
        "more samples; all together, twice the largest size, are worth more than its end."
    )
