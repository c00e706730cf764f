"""The cost of ranking all layers by each metric: measured seconds, and tokens through layers."""

import statistics
import textwrap
from operator import itemgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from lamina.options.metrics import METRICS, carried_passes
from lamina.relevance.statistics import Z95
from lamina_workflow.cost.work import Tokens, sweep_work
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "What a metric costs"
POSITION = 27
TABLES = ("jobs", "relevance", "calibrations", "models")
QUERIES = ("what_a_metric_costs",)
MEAN_STYLE: style.LineStyle = {"color": style.COLOURS[0], "marker": "o"}
WORK_STYLE: style.LineStyle = {
    "color": style.COLOURS[2],
    "marker": "s",
    "linestyle": "",
    "markersize": 5,
}
NAIVE_STYLE = WORK_STYLE | {
    "color": style.COLOURS[1],
    "marker": "D",
    "markerfacecolor": "white",
}
ABOVE_POINT: style.LineStyle = {
    "xytext": (0, 6),
    "textcoords": "offset points",
    "ha": "center",
    "fontsize": 7,
}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per model, one line per pass with the metrics that it measures."""
    models = group_rows(rows, "model")
    most_passes = style.count_most(models.values(), itemgetter("pass"))
    figure, panels = style.make_panels(2 * len(models), 4.6, 0.62 * most_passes + 1.1, 2)
    for model_index, ((model,), model_rows) in enumerate(models.items()):
        time_axes, work_axes = panels[2 * model_index : 2 * model_index + 2]
        _draw_model(time_axes, work_axes, model_rows)
        time_axes.set_title(theme.format_title(model, "time"))
        work_axes.set_title("work")
    legend_entries = [
        ("mean over calibrations, 95 %", MEAN_STYLE),
        ("by lamina (× one forward pass)", WORK_STYLE),
        ("each pruned model alone", NAIVE_STYLE),
    ]
    style.add_legend(figure, legend_entries, 3)
    return figure


def _draw_model(time_axes: Axes, work_axes: Axes, rows: style.Rows) -> None:
    """Both panels of a model, the most expensive pass on top."""
    passes = {name: pass_rows for (name,), pass_rows in group_rows(rows, "pass").items()}
    seconds = {}
    mean_seconds = {}
    for name, pass_rows in passes.items():
        seconds[name] = [row["seconds"] for row in pass_rows]
        mean_seconds[name] = statistics.mean(seconds[name])
    ordered_names = sorted(passes, key=lambda name: -mean_seconds[name])
    for y, name in enumerate(ordered_names):
        _draw_seconds(time_axes, y, seconds[name])
        _draw_work(work_axes, y, name, passes[name])

    for axes in (time_axes, work_axes):
        axes.set(ylim=(len(passes) - 0.5, -0.5), xlim=(0, 1.08 * axes.get_xlim()[1]))
        axes.set_yticks(range(len(passes)), [])
    labels = [_label_pass(name, passes[name]) for name in ordered_names]
    time_axes.set_yticks(range(len(passes)), labels, fontsize=7.5)
    time_axes.set_xlabel("seconds for all layers, including start-up")
    work_axes.set_xlabel("tokens × layers")
    work_axes.xaxis.set_major_locator(MaxNLocator(4))
    work_axes.xaxis.set_major_formatter(EngFormatter())


def _label_pass(pass_name: str, rows: style.Rows) -> str:
    """A pass and the metrics that it measures."""
    measured: set[str] = set()
    for row in rows:
        measured.update(row["measured"] or [])
    names = [
        name
        for name, metric in METRICS.items()
        if metric.pass_ in carried_passes(pass_name) and name in measured
    ]
    return f"{pass_name}\n" + textwrap.fill(", ".join(names), 46)


def _draw_seconds(axes: Axes, y: int, seconds: list[float]) -> None:
    """The mean over calibrations and its 95 % interval, and every calibration as a dot."""
    mean = statistics.mean(seconds)
    half_width = 0.0
    if len(seconds) > 1:
        half_width = Z95 * statistics.stdev(seconds) / len(seconds) ** 0.5
    axes.plot(seconds, [y + 0.22] * len(seconds), ".", color=style.BASE_MODEL, markersize=4)
    axes.errorbar(mean, y, xerr=half_width, capsize=2.5, **MEAN_STYLE)
    axes.annotate(f"{mean:.0f} s", (mean, y), **ABOVE_POINT)


def _draw_work(axes: Axes, y: int, pass_name: str, rows: style.Rows) -> None:
    """The work of a pass and of evaluating every pruned model alone, as means over calibrations."""
    n_layers = rows[0]["n_layers"]
    works = []
    naive_works = []
    stream_tokens = 0.0
    for row in rows:
        # Along context and gold answer; wrong choices add the same to all passes.
        tokens = Tokens(row["n_samples"], row["n_tokens"], row["n_tokens"], row["n_tokens"])
        work, naive_work = sweep_work(tokens, n_layers, 0, pass_name, "layer")
        works.append(work)
        naive_works.append(naive_work)
        stream_tokens += tokens.stream
    if not sum(works):
        return
    axes.plot(statistics.mean(naive_works), y, **NAIVE_STYLE)
    axes.plot(statistics.mean(works), y, **WORK_STYLE)
    n_forward_passes = sum(works) / (n_layers * stream_tokens)
    axes.annotate(f"×{n_forward_passes:.1f}", (statistics.mean(works), y), **ABOVE_POINT)


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Cost of ranking all layers of the base model once, for each pass that measures metrics. "
        "Left: wall time of the pass's jobs, including start-up and loading: mean over "
        f"calibrations ({sample_counts} samples each) with its 95 % interval; each calibration in "
        "grey. Right: tokens × layers that lamina computes, and the number of forward passes of "
        "the model that they equal; for comparison, those of evaluating each pruned model alone. "
        "Context and gold answer are counted; wrong choices add to every pass. An iterative "
        "selector costs about this much for each layer that it removes."
    )
