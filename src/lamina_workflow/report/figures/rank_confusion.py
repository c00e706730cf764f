"""Ranks by cosine against ranks by accuracy [arXiv 2605.14075, figure 3 B]."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import draw_number_cell

TITLE = "How cosine ranks what accuracy ranks"
POSITION = 24
FOLDED = True
TABLES = ("relevance", "agreements", "models")
QUERIES = ("how_cosine_ranks_what_accuracy_ranks",)
# Darker means more units. The three also differ in lightness, to be legible without colour.
SAME_RANK = LinearSegmentedColormap.from_list("same", ["#b9e3d4", "#00553d"])
NEAR_RANK = LinearSegmentedColormap.from_list("near", ["#d6e9f5", "#0072b2"])
FAR_RANK = LinearSegmentedColormap.from_list("far", ["#fbdcc4", "#b04a00"])
BADLY = 0.25  # two ranks are far apart if they differ by more than this share of the units
INCHES_PER_RANK = 0.22


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and kind of unit: ranks by accuracy down, by cosine across."""
    groups = group_rows(rows, "model", "component", "n_units")
    most_units = max(row["n_units"] for row in rows)
    side = max(2.6, INCHES_PER_RANK * most_units)
    figure, panels = style.make_panels(len(groups), side + 0.9, side + 0.9, 2)
    scale = Normalize(0, max(row["n"] for row in rows))
    for axes, ((model, component, n_units), cells) in zip(panels, groups.items(), strict=True):
        _set_up_ranks(axes, n_units)
        for cell in cells:
            _draw_pair(axes, cell, scale)
        axes.set_title(theme.format_title(model, f"every {component}, n = {cells[0]['n_all']}"))

    legend_entries: list[style.LegendEntry] = []
    for label, colours in (
        ("same rank", SAME_RANK),
        ("at most a quarter of the ranks apart", NEAR_RANK),
        ("further apart", FAR_RANK),
    ):
        legend_entries.append((label, Patch(facecolor=colours(0.6))))
    style.add_legend(figure, legend_entries, 3)
    return figure


def _set_up_ranks(axes: Axes, n_units: int) -> None:
    ranks = [str(rank) for rank in range(1, n_units + 1)]
    style.set_matrix_axes(axes, n_units, ranks)
    axes.set_xticks(range(n_units), ranks)
    axes.set_aspect("equal")
    axes.set(xlabel="rank by cosine", ylabel="rank by accuracy (1 = least relevant)")


def _draw_pair(axes: Axes, cell: dict[str, Any], scale: Normalize) -> None:
    """How many units have two ranks, as a number on the colour of their distance."""
    position = (cell["cosine_rank"] - 1, cell["accuracy_rank"] - 1)
    square = draw_number_cell(
        axes, position, cell["n"], str(cell["n"]), choose_colours(cell), scale
    )
    text = (
        f"rank {cell['accuracy_rank']} by accuracy, {cell['cosine_rank']} by cosine: {cell['n']} "
        f"of {cell['n_all']}"
    )
    style.add_hint(square, text)


def choose_colours(cell: dict[str, Any]) -> Colormap:
    """The colours of a pair of ranks, by their distance."""
    distance = abs(cell["accuracy_rank"] - cell["cosine_rank"])
    if distance == 0:
        return SAME_RANK
    return FAR_RANK if distance > BADLY * cell["n_units"] else NEAR_RANK


def write_caption(rows: style.Rows) -> str:
    sentences = []
    groups = group_rows(rows, "model", "component", "n_units")
    for (model, component, _), cells in groups.items():
        sentences.append(_describe_panel(model, component, cells[0]))
    return (
        "How many units of the base model have each pair of ranks, over all calibrations. Below "
        "the diagonal, cosine finds a unit less relevant than accuracy does, and would remove it "
        "too early. Of eight or more units, the first two and the last two are left out. Among "
        "equal scores, the deeper unit counts as less relevant, as it does for a selector. "
        + " ".join(sentences)
    )


def _describe_panel(model: str, component: str, row: dict[str, Any]) -> str:
    misranked = _format_share(row, "misranked")
    badly = _format_share(row, "badly")
    return (
        f"{model}, every {component}: {misranked} differ in rank, {badly} by more than a "
        f"quarter of the ranks ({row['n_all']} units of {row['n_calibrations']} "
        f"calibrations, n = {row['n_samples']:,} samples)."
    )


def _format_share(row: dict[str, Any], name: str) -> str:
    """A measured share, with the bounds of the true one if they are known."""
    share = f"{100 * row[name]:.0f} %"
    if row[f"{name}_low"] is None:
        return share
    bounds = f"{100 * row[f'{name}_low']:.0f} to {100 * row[f'{name}_high']:.0f} %"
    return f"{share} (95 % bounds {bounds})"
