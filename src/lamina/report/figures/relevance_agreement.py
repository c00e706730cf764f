"""How differently cosine and accuracy rank layers: one rank against the other, with Spearman's correlation."""

from typing import Any

import duckdb
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import rankdata, spearmanr

from lamina.relevance.statistics import Z95
from lamina.report.answers import answer
from lamina.report.figures import style

TITLE = "Where cosine and accuracy disagree"
PLACE = 20
TABLES = ("relevance", "models")
ABOUT = (
    "Each layer's place by cosine relevance against its place by accuracy relevance, with the places that its 95 % "
    "intervals reach, and Spearman's correlation over layers with its interval."
)

QUERIES = ("where_metrics_disagree",)
METRICS = ("accuracy", "cosine")


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration, one numbered point per layer, bars for the ranks its intervals reach."""
    groups = style.grouped(data, "model", "calibration")
    figure, grid = style.panels(len(groups), 3.4, 3.5, 3)
    for axes, ((model, calibration), chosen) in zip(grid, groups.items(), strict=True):
        panel(axes, chosen)
        axes.set_title(f"{theme.title(model, calibration)}\n{correlation_text(chosen)}")
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=8, markerfacecolor="white", color="#0072B2"),
        Line2D([], [], color="#0072B2", linewidth=0.9),
        Line2D([], [], color="#999999", linewidth=0.9, linestyle="--"),
    ]
    style.legend_below(figure, handles, ["layer (its number)", "ranks within its 95 % intervals", "agreement"], 3)
    return figure


def panel(axes: Axes, data: list[dict[str, Any]]) -> None:
    """Ranks of one calibration; ties share the mean rank."""
    n = len(data)
    across = ranks_with_reach(data, "accuracy")
    up = ranks_with_reach(data, "cosine")
    axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#999999", linewidth=0.9, linestyle="--", zorder=1)
    bars: dict[str, Any] = dict(fmt="none", ecolor="#0072B2", elinewidth=0.9, alpha=0.55, zorder=2)
    axes.errorbar(across[0], up[0], xerr=across[1:], yerr=up[1:], **bars)
    size = 62 if n <= 16 else 48
    axes.scatter(across[0], up[0], s=size, color="white", edgecolor="#0072B2", linewidth=0.9, zorder=3)
    for row, x, y in zip(data, across[0], up[0], strict=True):
        said = (f"{name} {row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]" for name in METRICS)
        style.hints(axes, [(x, y, f"layer {row['layer']}: {', '.join(said)}, n = {row['accuracy_samples']}")])
        font = 6 if n <= 16 else 5
        axes.text(x, y, str(row["layer"]), ha="center", va="center_baseline", fontsize=font, zorder=4)
    axes.set(xlim=(0, n + 1), ylim=(0, n + 1), aspect="equal")
    axes.set(xlabel="rank by accuracy (1 = least relevant)", ylabel="rank by cosine")
    for axis in "xy":
        style.whole_numbers(axes, axis)


def ranks_with_reach(data: list[dict[str, Any]], metric: str) -> np.ndarray:
    """Ranks, and how far down and up they could move if the score were at an end of its interval; shape (3, layers)."""
    scores = np.array([row[metric] for row in data])
    low = np.array([row[f"{metric}_low"] if row[f"{metric}_low"] is not None else row[metric] for row in data])
    high = np.array([row[f"{metric}_high"] if row[f"{metric}_high"] is not None else row[metric] for row in data])
    others = ~np.eye(len(scores), dtype=bool)
    ranks = rankdata(scores)
    lowest = 1 + (others & (scores[None, :] < low[:, None])).sum(1)
    highest = 1 + (others & (scores[None, :] <= high[:, None])).sum(1)
    return np.stack([ranks, np.maximum(ranks - lowest, 0), np.maximum(highest - ranks, 0)])


def correlation(data: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Spearman's correlation over layers and its 95 % interval: Fisher's z, with the variance of ranks, whose
    correlations vary more than those of normal numbers [Bonett and Wright 2000].
    """
    rho = float(spearmanr([row["accuracy"] for row in data], [row["cosine"] for row in data]).statistic)
    z, reach = np.arctanh(np.clip(rho, -0.999999, 0.999999)), Z95 * np.sqrt((1 + rho**2 / 2) / (len(data) - 3))
    return rho, float(np.tanh(z - reach)), float(np.tanh(z + reach))


def correlation_text(data: list[dict[str, Any]]) -> str:
    """Correlation, interval and count; too few layers give no interval worth printing."""
    if len(data) < 5:
        return f"too few layers for a correlation (n = {len(data)})"
    rho, low, high = correlation(data)
    return f"ρ = {rho:.2f} [{low:.2f}, {high:.2f}], n = {len(data)}".replace("-", "−")


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Every layer that both metrics scored, in order of depth."""
    rows = answer(connection, QUERIES[0])
    return sorted(rows, key=lambda row: (row["model"], row["calibration"], row["layer"]))


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Each layer's place when layers are ordered by cosine relevance against its place by accuracy relevance "
        f"(base model; {style.counts([row['accuracy_samples'] for row in data])} calibration samples per layer). "
        "Above the diagonal, cosine keeps what the task does not need; below, it removes what the task needs. Bars: "
        "places reached within a score's 95 % interval. ρ: Spearman's correlation over layers with its 95 % interval, "
        "as if the layers were drawn from many."
    )
