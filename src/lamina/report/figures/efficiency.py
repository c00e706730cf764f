"""The gain from removing layers: latency and throughput against the base model."""

from typing import Any

from matplotlib.figure import Figure

from lamina.report.figures import style
from lamina.report.paired_tests import NOISY, ratio_interval

TITLE = "What pruning buys"
PLACE = 90
TABLES = ("efficiency", "plans", "models")
QUERIES = ("what_pruning_buys",)
BASE: style.Look = dict(color="#999999", linestyle="--", linewidth=0.9)
MEASURES = {
    "latency_ratio": "latency of the prompt",
    "tokens_per_second_ratio": "tokens per second",
}


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per model: a row per size and repair, a mark per number of runs of removed units."""
    models = style.grouped(data, "model")
    looks = style.looks([_runs(runs) for runs in sorted({row["runs"] for row in data})], 4.5)
    most = max(len({_name(row) for row in mine}) for mine in models.values())
    height = 1.1 + most * (0.2 + 0.07 * len(looks))
    figure, grid = style.panels(2 * len(models), 4.6, height, 2, sharey=len(models) == 1)
    for place, ((model,), mine) in enumerate(models.items()):
        counts: dict[str, list[int]] = {}  # of runs, by row
        for row in sorted(
            mine,
            key=lambda row: (row["removed"], row["repair"] != "none", row["repair"], row["runs"]),
        ):
            counts.setdefault(_name(row), [])
            counts[_name(row)] += [row["runs"]] * (row["runs"] not in counts[_name(row)])
        for axes, (column, title) in zip(
            grid[2 * place : 2 * place + 2], MEASURES.items(), strict=True
        ):
            axes.axvline(1, **BASE)
            for row in (row for row in mine if row[column] is not None):
                value, error, runs = row[column], row[f"{column}_stderr"], _runs(row["runs"])
                low, high = (
                    (value, value)
                    if error is None
                    else ratio_interval(value, error, row["repeats"])
                )
                there = counts[_name(row)]
                at = (
                    list(counts).index(_name(row))
                    + (there.index(row["runs"]) + 0.5 - len(there) / 2) * 0.24
                )
                if high > NOISY * low:
                    axes.text(
                        1,
                        at,
                        f"  {runs}: too noisy",
                        va="center",
                        fontsize=7,
                        color=looks[runs]["color"],
                    )
                else:
                    ends = [[value - low], [high - value]]
                    axes.errorbar(value, at, xerr=ends, capsize=2, **looks[runs])
                said = f"{_name(row)}, {runs}: {value:.3f} [{low:.3f}, {high:.3f}], n = {row['repeats']}"
                style.hints(axes, [(value, at, said)])
            if not axes.containers:
                axes.set_xlim(0.5, 1.5)
            axes.set_xlabel("ratio to base model")
            style.lines_down(axes, list(counts))
            axes.set_title(theme.title(model, title))
    style.legend_below(figure, [*looks.items(), ("base model", BASE)], 6)
    return figure


def _runs(count: int) -> str:
    return f"removed in {count} run{'s' if count > 1 else ''}" if count else "layers replaced"


def _name(row: dict[str, Any]) -> str:
    """A timed variant's size and repair, and its units if they are not whole layers."""
    name = f"{row['removed']} removed, {style.repair_name(row['repair'], row['healing'])}"
    return name if row["component"] in (None, "layer") else f"{name}: {row['composition']}"


def caption(data: style.Rows) -> str:
    first = data[0]
    timed = {row["timed"] or number for number, row in enumerate(data)}
    return (
        "Which layers go does not change the cost, only how many lack what, the patch, and at how many runs of "
        "removed units it acts; healing is merged into the weights. So one variant of each was timed, in turn with "
        f"the base model ({len(timed):,} variants, {style.counts([row['repeats'] for row in data])} repetitions each), "
        "and repairs that build the model alike share the timing. Points are geometric means over repetitions with "
        f"95 % intervals (Student's t of the logarithms), left out where the upper end is more than {NOISY} times the "
        "lower one. Latency is that of the prompt alone, "
        f"{first['prompt']} tokens; {first['generate']} tokens are generated after it, batch {first['batch']}, "
        f"{first['dtype']} on {first['device']}. The numbers beside the picture have parameters and peak memory too."
    )
