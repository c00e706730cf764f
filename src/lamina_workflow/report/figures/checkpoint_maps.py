"""How relevance develops during training: checkpoints of one model as rows of a map.

[arXiv 2605.14075, figures 7 to 13]
"""

from matplotlib.figure import Figure

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import layer_maps, style

TITLE = "How relevance forms in training"
POSITION = 14
FOLDED = True
TABLES = ("relevance", "models", "calibrations", "sweeps")
QUERIES = ("how_relevance_forms_in_training",)
NEEDS = {"checkpoints": 2}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One map per training, calibration and metric: checkpoints down, layers across."""
    groups = group_rows(rows, "series", "component", "metric", "calibration")
    maps = []
    for (series, component, metric, calibration), map_rows in groups.items():
        kind = "" if component == "layer" else f" ({component})"
        title = f"{series}: {metric}{kind} on {calibration}"
        maps.append(layer_maps.build_map(title, map_rows))
    legend = [("95 % interval includes 0", layer_maps.INCLUDES_ZERO_STYLE)]
    return layer_maps.draw_maps(maps, "steps or tokens", legend)


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    accuracy_counts = style.format_counts(row["n_accuracy"] for row in rows)
    return (
        "Relevance of each layer at the checkpoints of one training run, the first at the top "
        f"({sample_counts} calibration samples per cell). Left: progress of the training, as "
        "numbered in the checkpoints' names. Maps of one metric share one colour scale. A ring "
        "marks cells of accuracy whose 95 % interval includes 0. Grey: undefined, because the "
        "checkpoint is at chance. Right: accuracy of the checkpoint on the calibration, with its "
        f"95 % interval ({accuracy_counts}). The CSV file has every interval."
    )
