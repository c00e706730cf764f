"""Show the comparison of two results folders as a figure and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina import paths
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TEMPLATE = paths.locate("workflow/report/compare.html.j2")
MAX_PANELS = 8
MAX_PANEL_ROWS = 20
MAX_UNMOVED_ROWS = 3  # in a panel in which nothing moved
MAX_PAGE_ROWS = 20  # on a page on which nothing moved
UNMOVED_COLOUR = "#9a9a9a"
INCHES_PER_ROW = 0.22
PANEL_MARGIN = 0.9  # inches

Comparisons = Sequence[
    Mapping[str, Any]
]  # rows of `lamina_workflow.report.compare.NumberComparison`


def draw_comparisons(comparisons: Comparisons) -> Figure:
    """Differences with their 95 % intervals, one panel for each table and metric.

    A panel shows the numbers that moved, or those with the least p values if none did. Likewise,
    the panels are those with the least p values.
    """
    groups = group_rows(comparisons, "table", "metric")
    names = sorted(groups, key=lambda name: groups[name][0]["p_holm"])[:MAX_PANELS]
    shown_rows = [_select_panel_rows(groups[name]) for name in names]

    heights = [PANEL_MARGIN + INCHES_PER_ROW * len(panel_rows) for panel_rows in shown_rows]
    figure = Figure(figsize=(9, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, name, panel_rows in zip(panels, names, shown_rows, strict=True):
        _draw_panel(axes, panel_rows)
        table, metric = name
        n_moved = sum(row["moved"] for row in groups[name])
        title = f"{table}, {metric}: {n_moved} of {len(groups[name])} moved"
        axes.set_title(title, loc="right")
    return figure


def _select_panel_rows(group: Comparisons) -> Comparisons:
    moved_rows = [row for row in group if row["moved"]]
    if moved_rows:
        return moved_rows[:MAX_PANEL_ROWS]
    return group[:MAX_UNMOVED_ROWS]


def _draw_panel(axes: Axes, rows: Comparisons) -> None:
    """One row of the panel for each comparison, the first at the top."""
    from_below = list(reversed(rows))
    for y, row in enumerate(from_below):
        colour = _choose_colour(row)
        marker = style.MARKERS[0 if row["moved"] else 1]
        axes.plot([row["ci_low"], row["ci_high"]], [y, y], color=colour, linewidth=1.6)
        axes.plot(row["difference"], y, marker, color=colour, markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    labels = [f"{row['number']}  n = {row['n_samples']}" for row in from_below]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("B - A, with 95 % interval")


def _choose_colour(row: Mapping[str, Any]) -> str:
    if not row["moved"]:
        return UNMOVED_COLOUR
    if row["better"] is None:
        return style.COLOURS[0]
    return style.COLOURS[2] if row["better"] else style.COLOURS[1]


def render_comparisons(
    comparisons: Comparisons, a: str, b: str, summary: Sequence[str], svg: str
) -> str:
    """The comparison of folders a and b as one HTML file, with a table of what moved."""
    moved_rows = [row for row in comparisons if row["moved"]]
    template = jinja2.Template(
        Path(TEMPLATE).read_text(encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return template.render(
        a=a,
        b=b,
        summary=summary,
        svg=Markup(svg[svg.index("<svg") :]),
        columns=list(comparisons[0]),
        rows=moved_rows or comparisons[:MAX_PAGE_ROWS],
    )
