"""What layers do in a complete model: void tokens, readable labels, and the place of a difference between prompts."""

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.report.answers import answer
from lamina.report.figures import style

TITLE = "What layers do"
PLACE = 28
TABLES = ("diagnoses", "models")
# Of each kind: its measures in the order of their lines, what the lines are called, and the panel's axes.
KINDS: dict[str, tuple[dict[str, str], str, str]] = {
    "void": (
        {"void": "all tokens", "void_prompt": "questions", "void_response": "answers"},
        "layer",
        "share of tokens it is void for",
    ),
    "probe": (
        {"accuracy": "label read"},
        "boundary (stream entering the layer)",
        "share of labels read",
    ),
    "patching": (
        {
            "repair_changed": "at what differs",
            "repair_between": "between",
            "repair_last": "at the last token",
        },
        "boundary (stream entering the layer)",
        "share of the answer brought back",
    ),
}

QUERIES = ("what_diagnoses_found",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """A panel per model, diagnosis and calibration."""
    groups = style.grouped(data, "model", "calibration", "diagnosis", "kind")
    figure, grid = style.panels(len(groups), 3.4, 2.9, 4)
    for axes, ((model, calibration, name, kind), chosen) in zip(grid, groups.items(), strict=True):
        _panel(axes, kind, chosen)
        axes.set_title(
            theme.title(model, name if calibration == "none" else f"{name}, {calibration}")
        )
    return figure


def _panel(axes: Axes, kind: str, data: style.Rows) -> None:
    measures, place, label = KINDS[kind]
    for turn, (measure, name) in enumerate(measures.items()):
        line = [row for row in data if row["measure"] == measure]
        if not line:
            continue
        x, y, colour = (
            [row["layer"] for row in line],
            [row["value"] for row in line],
            style.COLOURS[turn],
        )
        low = [row["value"] if row["ci_low"] is None else row["ci_low"] for row in line]
        high = [row["value"] if row["ci_high"] is None else row["ci_high"] for row in line]
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            x,
            y,
            label=name,
            markersize=3.5,
            linewidth=1.2,
            color=colour,
            marker=style.MARKERS[turn],
        )
        control = [(row["layer"], row["control"]) for row in line if row["control"] is not None]
        if control:
            name = "_" if turn else "control"
            axes.plot(
                *zip(*control, strict=True), color=colour, linestyle=":", linewidth=1.1, label=name
            )
    lowest = min(
        0.0,
        *(
            row["ci_low"]
            for row in data
            if row["measure"] in measures and row["ci_low"] is not None
        ),
    )
    axes.set(xlabel=place, ylabel=label, ylim=(1.05 * lowest, 1.32), yticks=[0, 0.25, 0.5, 0.75, 1])
    style.whole_numbers(axes)
    axes.legend(loc="upper center", ncols=2, fontsize=7, handlelength=2)


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """What is measured layer by layer, kinds in the order of `KINDS`."""
    rows = [
        row
        for row in answer(connection, QUERIES[0])
        if row["kind"] in KINDS and row["layer"] is not None
    ]
    order = list(KINDS)
    return sorted(
        rows,
        key=lambda row: (
            row["model"],
            order.index(row["kind"]),
            row["diagnosis"],
            row["calibration"],
        ),
    )


def caption(data: style.Rows) -> str:
    words = {
        "void": "Void: a token's norm grows less at the layer than 0.8 of the range of its growth before (or the share "
        "that the diagnosis sets); dotted, with the growth shuffled over the layers",
        "probe": "Label read: logistic regression on the last token's stream, on inputs that it was not fitted on; "
        "dotted, on shuffled labels",
        "patching": "Brought back: of the logit difference between the right answer and another prompt's, when that "
        "prompt's run is given the stream of the clean one at these tokens; dotted, the stream of an unrelated prompt",
    }
    sentences = [
        f"{text} ({style.counts([row['n_samples'] for row in data if row['kind'] == kind])})."
        for kind, text in words.items()
        if any(row["kind"] == kind for row in data)
    ]
    return " ".join([*sentences, "Bands: 95 %, over samples."]) if sentences else ""
