"""The error at a boundary by channel and repair [arXiv 2605.15491, figures 1 and 4]."""

from collections.abc import Iterable
from typing import Any

import duckdb
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style

TITLE = "The error at a boundary, channel by channel"
POSITION = 52
FOLDED = True
TABLES = ("patches", "models")
QUERIES = ("how_errors_spread_over_channels",)
BARE_STYLE: style.LineStyle = {"color": "black", "linewidth": 1.4, "linestyle": "-"}
RUN_KEY = ("selector", "removed", "boundary")


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """One run of removed layers per model and calibration.

    It is the one with the most repairs; among these, that of the largest plan, then the longest.
    """
    shown_rows = []
    rows = answer_question(connection, QUERIES[0])
    for calibration_rows in group_rows(rows, "model", "calibration").values():
        runs = group_rows(calibration_rows, *RUN_KEY)
        shown_run = min(runs.values(), key=_order_run)
        shown_rows += shown_run
    return shown_rows


def _order_run(rows: Iterable[Any]) -> tuple[Any, ...]:
    first = next(iter(rows))
    length = first["end"] - first["start"]
    return (-first["n_repairs"], -first["removed"], -length, first["selector"], first["start"])


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and calibration, one line per repair and one without repair."""
    groups = group_rows(rows, "model", "calibration")
    repair_styles = _assign_styles(sorted({row["repair"] for row in rows}))
    figure, panels = style.make_panels(len(groups), 3.9, 3.1, 3)
    for axes, ((model, calibration), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_panel(axes, panel_rows, repair_styles)
        first = panel_rows[0]
        title = f"{calibration}: run {first['boundary']} by {first['selector']}"
        axes.set_title(theme.format_title(model, title))
    style.add_legend(figure, [("no repair", BARE_STYLE), *repair_styles.items()])
    return figure


def _assign_styles(repairs: list[str]) -> dict[str, style.LineStyle]:
    """Colour and dashes of each repair."""
    styles: dict[str, style.LineStyle] = {}
    for index, repair in enumerate(repairs):
        styles[repair] = {
            "color": style.COLOURS[index % len(style.COLOURS)],
            "linestyle": style.DASHES[index % len(style.DASHES)],
            "linewidth": 1.1,
        }
    return styles


def _draw_panel(axes: Axes, rows: style.Rows, repair_styles: dict[str, style.LineStyle]) -> None:
    bare_curves = set()
    for (repair,), curve in group_rows(rows, "repair").items():
        shares = [100 * (row["channel_group"] - 0.5) / row["n_groups"] for row in curve]
        bare_errors = tuple(row["mae_before"] for row in curve)
        if bare_errors not in bare_curves:  # repairs on the same documents start from one error
            dashes = repair_styles[repair]["linestyle"]
            axes.plot(shares, bare_errors, **BARE_STYLE | {"linestyle": dashes})
            bare_curves.add(bare_errors)
        axes.plot(shares, [row["mae_after"] for row in curve], **repair_styles[repair])
        last = curve[-1]
        style.add_hints(axes, [(shares[-1], last["mae_after"], f"{repair}: {_describe(last)}")])
    axes.set_yscale("log")
    style.set_log_ticks(axes.yaxis)
    axes.set(
        xlim=(0, 100),
        xlabel="channels, largest error without repair first (%)",
        ylabel="mean absolute error (activations)",
    )
    _write_totals(axes, rows)


def _write_totals(axes: Axes, rows: style.Rows) -> None:
    """The relative error of the run with each repair, in the corner without lines."""
    lines = []
    for (repair,), curve in group_rows(rows, "repair").items():
        first = curve[0]
        before = style.format_interval(first["error_before"], first["error_before_stderr"])
        after = style.format_interval(first["error"], first["error_stderr"])
        lines.append(f"{repair}: {before} → {after}")
    text = "relative error\n" + "\n".join(lines)
    axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=6.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.08 + 0.055 * len(lines)))


def _describe(row: dict[str, Any]) -> str:
    """The errors of all channels together."""
    return (
        f"mean absolute error {row['run_mae_before']:.3f} → {row['run_mae_after']:.3f}, "
        f"n = {row['n_heldout']} held-out documents"
    )


def write_caption(rows: style.Rows) -> str:
    document_counts = style.format_counts(row["n_heldout"] for row in rows)
    most_channels = max(row["n_channels"] for row in rows)
    points = f"; each point averages up to {most_channels}" if most_channels > 1 else ""
    return (
        "Mean absolute error, by channel, of the residual stream that enters the layer after a run "
        "of removed layers, on documents that the repair was not fitted on "
        f"({document_counts} per run). Channels are ordered by their error without repair{points}. "
        "A repair that was measured on other documents has its own line without repair, with the "
        "same dashes. In the corner: relative error of the run without and with each repair, with "
        "95 % intervals from a bootstrap over documents. Run 3-5 is layers 3 and 4. Each panel "
        "shows the run with the most repairs; among these, the run of the largest plan, then the "
        "longest. The query returns every run."
    )
