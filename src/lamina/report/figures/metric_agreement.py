"""How alike accuracy and every other metric order units, task by task: rank correlations with their intervals."""

import math

from matplotlib.figure import Figure

from lamina.report.figures import style

TITLE = "How metrics agree with accuracy"
PLACE = 25
TABLES = ("relevance", "models")
QUERIES = ("how_metrics_agree_on_each_task",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and kind of unit, a row per metric, a mark per calibration."""
    groups = style.grouped(data, "model", "component")
    looks = style.looks(sorted({row["calibration"] for row in data}), 5)
    most = max(len({row["metric"] for row in chosen}) for chosen in groups.values())
    figure, grid = style.panels(len(groups), 4.6, 0.9 + most * (0.3 + 0.1 * len(looks)), 2)
    for axes, ((model, kind), chosen) in zip(grid, groups.items(), strict=True):
        metrics = style.grouped(chosen, "metric")
        for place, ((metric,), rows) in enumerate(metrics.items()):
            for row in rows:
                at = place + 0.7 * (
                    (list(looks).index(row["calibration"]) + 0.5) / len(looks) - 0.5
                )
                value, low, high = row["spearman"], row["ci_low"], row["ci_high"]
                ends = None if low is None else [[value - low], [high - value]]
                axes.errorbar(value, at, xerr=ends, elinewidth=0.9, **looks[row["calibration"]])
                reach = "" if low is None else f" [{low:.2f}, {high:.2f}]"
                said = (
                    f"{metric} on {row['calibration']}: {value:.2f}{reach}, {row['n_units']} units"
                )
                style.hints(
                    axes, [(value, at, f"{said}, n = {row['n_samples']}".replace("-", "−"))]
                )
            mean = math.fsum(row["spearman"] for row in rows) / len(rows)
            text = f"{mean:.2f}".replace("-", "−")
            axes.annotate(
                text, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8
            )
        axes.axvline(0, color=style.NEUTRAL, linewidth=0.8)
        axes.set_title(theme.title(model, f"every {kind}"))
        axes.set(
            xlim=(-1.03, 1.03),
            xticks=[-1, -0.5, 0, 0.5, 1],
            xlabel="rank correlation (1 = the same order)",
        )
        style.lines_down(axes, [metric for (metric,) in metrics])
    style.legend_below(figure, looks.items())
    return figure


def caption(data: style.Rows) -> str:
    return (
        "Spearman's correlation, within a task, of accuracy relevance with another metric over the units of the base "
        f"model ({style.counts([row['n_units'] for row in data])} units, "
        f"{style.counts([row['n_samples'] for row in data])} calibration samples per task): this is what a selector "
        "goes by. Bars: 95 % intervals, as if units were drawn from many. At the right: the mean over tasks. The "
        "noise of the samples makes a correlation smaller."
    )
