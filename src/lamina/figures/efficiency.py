"""What removing layers buys: latency, throughput, size and memory against the base model."""

from typing import Any

import duckdb
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.database import rows
from lamina.figures import style

QUERY = """
SELECT *, CASE WHEN recovery = 'none' AND healing = 'none' THEN 'pruned'
    WHEN healing = 'none' THEN 'patched' WHEN recovery = 'none' THEN 'healed' ELSE 'patched + healed' END AS kind
FROM efficiency WHERE removed > 0 ORDER BY model, removed, calibration, selector, recovery, healing
"""
MEASURES = (
    ("latency_ratio", "latency_ratio_stderr", "latency"),
    ("tokens_per_second_ratio", "tokens_per_second_ratio_stderr", "tokens per second"),
    ("parameters_ratio", None, "parameters"),
    ("peak_memory_ratio", None, "peak memory"),
)
KINDS: dict[str, dict[str, Any]] = {
    "pruned": dict(color="#0072B2", marker="o"),
    "patched": dict(color="#D55E00", marker="s"),
    "healed": dict(color="#009E73", marker="^"),
    "patched + healed": dict(color="#000000", marker="D"),
}


def draw(connection: duckdb.DuckDBPyConnection) -> Figure:
    """One row of panels per model: each measured ratio against the number of layers removed."""
    data = rows(connection, QUERY)
    if not data:
        return style.empty("no efficiency benchmark was run")
    models = sorted({row["model"] for row in data})
    measures = [measure for measure in MEASURES if any(row[measure[0]] is not None for row in data)]
    figure, grid = style.panels(len(models) * len(measures), 3.2, 2.8, len(measures))
    for place, axes in enumerate(grid):
        model, measure = models[place // len(measures)], measures[place % len(measures)]
        title = style.panel_title(connection, model, measure[2])
        panel(
            axes,
            [row for row in data if row["model"] == model and row[measure[0]] is not None],
            measure[0],
            measure[1],
            title,
        )
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in data)]
    handles = [Line2D([], [], linestyle="", markersize=4.5, alpha=0.8, **KINDS[kind]) for kind in kinds]
    handles.append(Line2D([], [], color="#999999", linestyle="--", linewidth=0.9))
    style.legend_below(figure, handles, [*kinds, "base model"], 5)
    return figure


def panel(axes: Axes, data: list[dict[str, Any]], column: str, error_column: str | None, title: str) -> None:
    """Small points are variants, spread over a little width; large ones their means, kinds side by side."""
    axes.axhline(1, color="#999999", linestyle="--", linewidth=0.9)
    sizes = sorted({row["removed"] for row in data})
    gap = min([1, *(after - before for before, after in zip(sizes, sizes[1:], strict=False))])
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in data)]
    lane = 0.7 * gap / max(len(kinds), 1)
    for place, kind in enumerate(kinds):
        for size in sizes:
            points = [row for row in data if row["kind"] == kind and row["removed"] == size]
            spread = (np.arange(len(points)) + 0.5) / max(len(points), 1) - 0.5
            x = size + (place - (len(kinds) - 1) / 2) * lane + 0.7 * lane * spread
            if not points:
                continue
            y = np.array([row[column] for row in points])
            axes.plot(x, y, linestyle="", markersize=1.8, alpha=0.35, markeredgewidth=0, **KINDS[kind])
            own = float((points[0][error_column] or 0) if error_column else 0)
            error = style.Z95 * (y.std(ddof=1) / np.sqrt(len(y)) if len(y) > 1 else own)
            at = size + (place - (len(kinds) - 1) / 2) * lane
            axes.errorbar(at, y.mean(), error, markersize=4.5, elinewidth=1.2, capsize=5, **KINDS[kind])
    axes.set_xticks(sizes)
    axes.set_xlim(sizes[0] - 0.6 * gap, sizes[-1] + 0.6 * gap)
    axes.set(xlabel="layers removed", ylabel="ratio to base model", title=title)


def caption(connection: duckdb.DuckDBPyConnection) -> str:
    """What the figure shows and from how many samples; empty where there is nothing to show."""
    data = rows(connection, QUERY)
    if not data:
        return ""
    first = data[0]
    setting = (
        f" Prompt of {first['prompt']} tokens, {first['generate']} generated, batch {first['batch']}, "
        f"{first['dtype']} on {first['device']}."
    )
    return (
        "Every variant against the base model measured in the same run; small points are variants, large ones their "
        f"means with 95 % intervals ({len(data):,} variants, {style.counts([row['repeats'] for row in data])} timed "
        f"repetitions each; a single variant has the interval of its repetitions).{setting}"
    )
