"""How relevance forms in training: every layer at every checkpoint of one model, by accuracy and by cosine."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style
from lamina.report.figures.pruning_dynamics import accuracy_labels, heat, scale_bars, scale_of

TITLE = "How relevance forms in training"
PLACE = 33
TABLES = ("relevance", "sweeps", "models")
ABOUT = (
    "Relevance of every layer at every checkpoint of a training, by accuracy and by cosine. At the right the accuracy "
    "of the checkpoint on the calibration, with half its 95 % interval. Hatched: the checkpoint is at chance."
)

QUERIES = ("how_relevance_forms_in_training",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Checkpoints down, layers across; two panels per series and calibration."""
    groups = style.grouped(data, "series", "calibration", "metric")
    depth = 1 + max(row["layer"] for row in data)
    steps = max(len({row["step"] for row in data if row["series"] == series}) for series, _, _ in groups)
    width, height = max(3.8, (0.30 if depth <= 16 else 0.18) * depth + 2.0), 0.27 * steps + 0.95
    figure, grid = style.panels(len(groups), width, height, 2)
    scales = {metric: scale_of(metric, data) for metric in dict.fromkeys(group[2] for group in groups)}
    several = len({series for series, _, _ in groups}) > 1
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        by_step = style.grouped(chosen, "step")
        lines = list(by_step.values())
        heat(axes, lines, group[2], scales[group[2]])
        axes.set_yticks(range(len(by_step)), [f"{step:,}" for (step,) in by_step])
        axes.set(xlabel="layer", ylabel="checkpoint")
        accuracy_labels(axes, [(line[0]["share"], line[0]["n"]) for line in lines])
        axes.set_title(f"{group[0]}: {group[1]}, {group[2]}" if several else f"{group[1]}, {group[2]}")
    scale_bars(figure, grid, scales)
    ring = Line2D([], [], marker="o", linestyle="", markersize=3.5, markerfacecolor="none", color="black")
    style.legend_below(figure, [ring], ["95 % interval includes 0"])
    return figure


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Relevance of every layer at every checkpoint of one training "
        f"({style.counts([row['n_samples'] for row in data])} calibration samples per cell). Left: share of the "
        "accuracy above chance that is lost without the layer; a ring: its 95 % bootstrap interval includes 0; "
        "hatched: the checkpoint is at chance, so nothing can be lost. Right: how far the layer turns the residual "
        "stream. At the edge the accuracy of the whole checkpoint on the calibration, with half its 95 % interval."
    )
