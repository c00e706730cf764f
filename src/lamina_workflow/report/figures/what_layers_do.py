"""What layers do in a complete model.

It shows void tokens, readable labels, and where prompts differ in the stream.
"""

from typing import Any, NamedTuple

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style

TITLE = "What layers do"
POSITION = 28
TABLES = ("diagnoses", "models")
KINDS = ("void", "probe", "patching")
QUERIES = ("what_diagnoses_found",)


class KindOfPanel(NamedTuple):
    """How the panel of one kind of diagnosis is drawn and described."""

    lines: dict[str, str]  # the label of each measure's line
    x_label: str
    y_label: str
    description: str  # for the caption


PANELS = {
    "void": KindOfPanel(
        {"void": "all tokens", "void_prompt": "questions", "void_response": "answers"},
        "layer",
        "share of tokens that it is void for",
        "Void: at this layer, the norm of the token's stream grows by less than 0.8 times (or the "
        "share that the diagnosis sets) the range of its growth at earlier layers; dotted: the "
        "growth shuffled over layers",
    ),
    "probe": KindOfPanel(
        {"accuracy": "probe"},
        "boundary (stream entering the layer)",
        "accuracy of the probe",
        "Probe: logistic regression of the label on the last token's stream, tested on held-out "
        "inputs; dotted: the same on shuffled labels",
    ),
    "patching": KindOfPanel(
        {
            "recovery_changed": "where prompts differ",
            "recovery_between": "between",
            "recovery_last": "at the last token",
        },
        "boundary (stream entering the layer)",
        "share of the logit difference recovered",
        "Recovered: share of the logit difference between the right answer and the corrupt "
        "prompt's answer that returns when the stream of the clean run replaces that of the "
        "corrupt run at these tokens; dotted: with the stream of an unrelated prompt",
    ),
}


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Measurements by layer, with kinds in the order of `KINDS`."""
    rows = [
        row
        for row in answer_question(connection, QUERIES[0])
        if row["kind"] in KINDS and row["layer"] is not None
    ]
    return sorted(
        rows,
        key=lambda row: (
            row["model"],
            KINDS.index(row["kind"]),
            row["diagnosis"],
            row["calibration"],
        ),
    )


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, diagnosis and calibration."""
    groups = group_rows(rows, "model", "calibration", "diagnosis", "kind")
    figure, panels = style.make_panels(len(groups), 3.4, 2.9, 4)
    for axes, (group, panel_rows) in zip(panels, groups.items(), strict=True):
        model, calibration, diagnosis, kind = group
        _draw_panel(axes, PANELS[kind], panel_rows)
        # A diagnosis with a file of its own belongs to no calibration.
        name = diagnosis if calibration == "none" else f"{diagnosis}, {calibration}"
        axes.set_title(theme.format_title(model, name))
    return figure


def _draw_panel(axes: Axes, panel: KindOfPanel, rows: style.Rows) -> None:
    lowest = 0.0
    for index, (measure, name) in enumerate(panel.lines.items()):
        points = [row for row in rows if row["measure"] == measure]
        lowest = min([lowest, *(row["ci_low"] for row in points if row["ci_low"] is not None)])
        if points:
            # One legend entry represents the controls of all lines.
            control_name = "_" if index else "control"
            _draw_line(axes, points, index, name, control_name)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set(ylim=(1.05 * lowest, 1.32), yticks=[0, 0.25, 0.5, 0.75, 1])
    style.set_integer_ticks(axes)
    axes.legend(loc="upper center", ncols=2, fontsize=7, handlelength=2)


def _draw_line(
    axes: Axes, points: list[dict[str, Any]], index: int, name: str, control_name: str
) -> None:
    """A measure over the layers with its intervals as a band, and its control as a dotted line."""
    colour = style.COLOURS[index]
    layers = [point["layer"] for point in points]
    values = [point["value"] for point in points]
    ci_low = []
    ci_high = []
    for point in points:
        ci_low.append(point["value"] if point["ci_low"] is None else point["ci_low"])
        ci_high.append(point["value"] if point["ci_high"] is None else point["ci_high"])
    axes.fill_between(layers, ci_low, ci_high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(
        layers,
        values,
        label=name,
        markersize=3.5,
        linewidth=1.2,
        color=colour,
        marker=style.MARKERS[index],
    )
    controlled = [point for point in points if point["control"] is not None]
    if controlled:
        axes.plot(
            [point["layer"] for point in controlled],
            [point["control"] for point in controlled],
            color=colour,
            linestyle=":",
            linewidth=1.1,
            label=control_name,
        )


def write_caption(rows: style.Rows) -> str:
    sentences = []
    for kind, panel in PANELS.items():
        kind_rows = [row for row in rows if row["kind"] == kind]
        if kind_rows:
            sample_counts = style.format_counts(row["n_samples"] for row in kind_rows)
            sentences.append(f"{panel.description} ({sample_counts}).")
    return " ".join([*sentences, "Bands: 95 %, over samples."]) if sentences else ""
