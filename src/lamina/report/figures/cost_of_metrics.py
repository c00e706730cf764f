"""The cost of ranking all layers by each metric: measured seconds, and tokens through layers."""

import statistics
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from lamina.config.metrics import METRICS, carried
from lamina.cost.work import Tokens, sweep_work
from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "What a metric costs"
PLACE = 27
TABLES = ("jobs", "relevance", "calibrations", "models")
QUERIES = ("what_a_metric_costs",)
MEAN: dict[str, Any] = {"color": style.COLOURS[0], "marker": "o"}
WORK: dict[str, Any] = {"color": style.COLOURS[2], "marker": "s", "linestyle": "", "markersize": 5}
NAIVE = WORK | {"color": style.COLOURS[1], "marker": "D", "markerfacecolor": "white"}
ABOVE: dict[str, Any] = {
    "xytext": (0, 6),
    "textcoords": "offset points",
    "ha": "center",
    "fontsize": 7,
}


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per model, one line per pass with the metrics that it measures."""
    models = style.grouped(data, "model")
    most = max(len(style.grouped(mine, "pass")) for mine in models.values())
    figure, grid = style.panels(2 * len(models), 4.6, 0.62 * most + 1.1, 2)
    for turn, ((model,), mine) in enumerate(models.items()):
        left, right = grid[2 * turn : 2 * turn + 2]
        by_pass = style.grouped(mine, "pass")
        dearest = sorted(
            by_pass, key=lambda key: -statistics.mean(row["seconds"] for row in by_pass[key])
        )
        for place, key in enumerate(dearest):
            seconds(left, place, [row["seconds"] for row in by_pass[key]])
            layer_tokens(right, place, key[0], by_pass[key])
        for axes in (left, right):
            axes.set(ylim=(len(by_pass) - 0.5, -0.5), xlim=(0, 1.08 * axes.get_xlim()[1]))
            axes.set_yticks(range(len(by_pass)), [])
        left.set_yticks(
            range(len(by_pass)), [label(key[0], by_pass[key]) for key in dearest], fontsize=7.5
        )
        left.set_xlabel("seconds for all layers, starting included")
        right.set_xlabel("tokens × layers")
        right.xaxis.set_major_locator(MaxNLocator(4))
        right.xaxis.set_major_formatter(EngFormatter())
        left.set_title(theme.title(model, "time"))
        right.set_title("work")
    marks = {
        "mean over calibrations, 95 %": MEAN,
        "by lamina (× one forward pass)": WORK,
        "every cut model alone": NAIVE,
    }
    style.legend_below(figure, marks.items(), 3)
    return figure


def label(pass_: str, chosen: list[dict[str, Any]]) -> str:
    """A pass and the metrics measured by it."""
    measured = {metric for row in chosen for metric in row["measured"] or []}
    names = [
        name
        for name, metric in METRICS.items()
        if metric.pass_ in carried(pass_) and name in measured
    ]
    return f"{pass_}\n" + textwrap.fill(", ".join(names), 46)


def seconds(axes: Axes, place: int, values: list[float]) -> None:
    """Draw the mean over calibrations and its 95 % interval, and every calibration as a dot."""
    mean = statistics.mean(values)
    reach = Z95 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0
    axes.plot(values, [place + 0.22] * len(values), ".", color="#999999", markersize=4)
    axes.errorbar(mean, place, xerr=reach, capsize=2.5, **MEAN)
    axes.annotate(f"{mean:.0f} s", (mean, place), **ABOVE)


def layer_tokens(axes: Axes, place: int, pass_: str, chosen: list[dict[str, Any]]) -> None:
    """Draw the work of the pass and of the naive way, means over calibrations."""
    # Along context and gold answer: wrong choices come on top of all passes alike.
    tokens = [
        Tokens(row["n_samples"], row["n_tokens"], row["n_tokens"], row["n_tokens"])
        for row in chosen
    ]
    depth = chosen[0]["n_layers"]
    work, naive = zip(*(sweep_work(each, depth, 0, pass_, "layer") for each in tokens), strict=True)
    if sum(work):
        axes.plot(statistics.mean(naive), place, **NAIVE)
        axes.plot(statistics.mean(work), place, **WORK)
        once = depth * sum(each.stream for each in tokens)
        axes.annotate(f"×{sum(work) / once:.1f}", (statistics.mean(work), place), **ABOVE)


def caption(data: style.Rows) -> str:
    return (
        "Cost of ranking all layers of the base model once, by the pass that measures a metric. Left: seconds of its "
        f"jobs, loading and starting included, over calibrations ({style.counts([row['n_samples'] for row in data])} "
        "samples each): mean, its 95 % interval, and each of them in grey. Right: tokens times layers that lamina runs "
        "(how many forward passes of the model that is stands above) and that evaluating every cut model by itself "
        "would take, counted along context and gold answer: wrong choices come on top of each pass. An iterative "
        "selector pays about this much for every layer that it removes."
    )
