"""How relevance changes while layers are removed [arXiv 2605.14075, figures 14 to 16]."""

from matplotlib.figure import Figure

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import layer_maps, style
from lamina_workflow.report.figures.layer_maps import LayerMap

TITLE = "How relevance changes as layers go"
POSITION = 12
FOLDED = True
TABLES = ("relevance", "plans", "models")
QUERIES = ("how_relevance_changes_as_layers_go",)
NEEDS = {"steps": 1}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One map per selector, calibration and kind of unit: steps down, layers across."""
    groups = group_rows(rows, "model", "component", "metric", "selector", "calibration")
    maps = []
    for (model, component, _, selector, calibration), map_rows in groups.items():
        kind = "" if component == "layer" else f" ({component})"
        title = theme.format_title(model, f"{selector}{kind} on {calibration}")
        maps.append(_build_map(title, map_rows))
    legend: list[style.LegendEntry] = [
        ("removed at this step", layer_maps.CHOSEN_STYLE),
        ("gone", layer_maps.GONE_STYLE),
    ]
    if any(layer_map.metric == "accuracy" for layer_map in maps):
        legend.append(("95 % interval includes 0", layer_maps.INCLUDES_ZERO_STYLE))
    return layer_maps.draw_maps(maps, "layers removed", legend)


def _build_map(title: str, rows: style.Rows) -> LayerMap:
    """The map of one selection: a cell is framed when it is removed, then crossed out."""
    layer_map = layer_maps.build_map(title, rows)
    steps = list(dict.fromkeys(row["step"] for row in rows))
    for row in rows:
        if row["chosen"]:
            step_index = steps.index(row["step"])
            layer_map.chosen.append((row["layer"], step_index))
            for later_index in range(step_index + 1, len(steps)):
                layer_map.gone.append((row["layer"], later_index))
    return layer_map


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    accuracy_counts = [row["n_accuracy"] for row in rows if row["accuracy"] is not None]
    caption = (
        "Each row is one step of a selector that measures all remaining layers after each removal: "
        f"their relevance by its own metric ({sample_counts} calibration samples per cell). Maps "
        "of one metric share one colour scale. For accuracy, 1 is all the accuracy above chance "
        "at this step, and a ring marks cells whose 95 % interval includes 0. The CSV file has "
        "every interval."
    )
    if accuracy_counts:
        caption += (
            " Right: accuracy of the step's model on the calibration, with its 95 % "
            f"interval ({style.format_counts(accuracy_counts)})."
        )
    return caption
