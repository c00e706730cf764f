"""The cost of ranking all layers by each metric: measured seconds, and tokens through layers."""

import statistics
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from lamina.config.metrics import METRICS, carried
from lamina.cost.work import Tokens, sweep_work
from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "What a metric costs"
PLACE = 27
TABLES = ("jobs", "relevance", "calibrations", "models")
ABOUT = (
    "Cost of ranking all layers of the base model once, by the pass that measures a metric: seconds of its jobs with "
    "95 % intervals over calibrations, and tokens times layers, beside those of evaluating every cut model alone."
)

QUERIES = ("what_a_metric_costs",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per model, one line per pass with the metrics that it measures."""
    models = list(dict.fromkeys(row["model"] for row in data))
    most = max(len(passes(data, model)) for model in models)
    figure, grid = style.panels(2 * len(models), 4.6, 0.62 * most + 1.1, 2)
    for turn, model in enumerate(models):
        left, right = grid[2 * turn : 2 * turn + 2]
        by_pass = passes(data, model)
        for place, (pass_, chosen) in enumerate(by_pass.items()):
            seconds(left, place, [row["seconds"] for row in chosen])
            layer_tokens(right, place, pass_, chosen)
        for axes in (left, right):
            axes.set(ylim=(len(by_pass) - 0.5, -0.5), xlim=(0, 1.08 * axes.get_xlim()[1]))
            axes.set_yticks(range(len(by_pass)), [])
        left.set_yticks(range(len(by_pass)), [label(pass_, chosen) for pass_, chosen in by_pass.items()], fontsize=7.5)
        left.set_xlabel("seconds for all layers, starting included")
        right.set_xlabel("tokens × layers")
        right.xaxis.set_major_locator(MaxNLocator(4))
        right.xaxis.set_major_formatter(EngFormatter())
        left.set_title(theme.title(model, "time"))
        right.set_title("work")
    handles = [
        Line2D([], [], color=style.COLOURS[0], marker="o"),
        Line2D([], [], color=style.COLOURS[2], marker="s", linestyle=""),
        Line2D([], [], color=style.COLOURS[1], marker="D", markerfacecolor="white", linestyle=""),
    ]
    labels = ["mean over calibrations, 95 %", "by lamina (× one forward pass)", "every cut model alone"]
    style.legend_below(figure, handles, labels, 3)
    return figure


def passes(data: list[dict[str, Any]], model: str) -> dict[str, list[dict[str, Any]]]:
    """A model's rows by pass, the most expensive pass first."""
    by_pass: dict[str, list[dict[str, Any]]] = {}
    for row in (row for row in data if row["model"] == model):
        by_pass.setdefault(row["pass"], []).append(row)
    return dict(sorted(by_pass.items(), key=lambda entry: -statistics.mean(row["seconds"] for row in entry[1])))


def label(pass_: str, chosen: list[dict[str, Any]]) -> str:
    """A pass and the metrics measured by it."""
    measured = {metric for row in chosen for metric in row["measured"] or []}
    names = [name for name, metric in METRICS.items() if metric.pass_ in carried(pass_) and name in measured]
    return f"{pass_}\n" + textwrap.fill(", ".join(names), 46)


def seconds(axes: Axes, place: int, values: list[float]) -> None:
    """Draw the mean over calibrations and its 95 % interval, and every calibration as a dot."""
    mean = statistics.mean(values)
    reach = Z95 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0
    axes.plot(values, [place + 0.22] * len(values), ".", color="#999999", markersize=4)
    axes.errorbar(mean, place, xerr=reach, fmt="o", color=style.COLOURS[0], capsize=2.5)
    axes.annotate(f"{mean:.0f} s", (mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)


def layer_tokens(axes: Axes, place: int, pass_: str, chosen: list[dict[str, Any]]) -> None:
    """Draw the work of the pass and of the naive way, means over calibrations."""
    # Along context and gold answer: wrong choices come on top of all passes alike.
    tokens = [Tokens(row["n_samples"], row["n_tokens"], row["n_tokens"], row["n_tokens"]) for row in chosen]
    depth = chosen[0]["n_layers"]
    work, naive = zip(*(sweep_work(each, depth, 0, pass_, "layer") for each in tokens), strict=True)
    once = depth * sum(each.stream for each in tokens)
    if not sum(work):
        return
    axes.plot(statistics.mean(naive), place, "D", color=style.COLOURS[1], markerfacecolor="white", markersize=5)
    axes.plot(statistics.mean(work), place, "s", color=style.COLOURS[2], markersize=5)
    text = f"×{sum(work) / once:.1f}"
    axes.annotate(text, (statistics.mean(work), place), (0, 6), textcoords="offset points", ha="center", fontsize=7)


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Cost of ranking all layers of the base model once, by the pass that measures a metric. Left: seconds of its "
        f"jobs, loading and starting included, over calibrations ({style.counts([row['n_samples'] for row in data])} "
        "samples each): mean, its 95 % interval, and each of them in grey. Right: tokens times layers that lamina runs "
        "(how many forward passes of the model that is stands above) and that evaluating every cut model by itself "
        "would take, counted along context and gold answer: wrong choices come on top of each pass. An iterative "
        "selector pays about this much for every layer that it removes."
    )
