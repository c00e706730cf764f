"""Which layers one task needs more than another: a row per pair of tasks, a column per layer."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import choose_text_colour, draw_number_cell

TITLE = "Which layers one task needs more than another"
POSITION = 22
TABLES = ("dissociations", "models")
NEEDS = {"calibrations": 2}
QUERIES = ("which_layers_one_task_needs_more",)
MAX_PAIRS = 24  # drawn per model, so that rows are legible; the CSV file has all of them
COLOURS = LinearSegmentedColormap.from_list(
    "difference", ["#b04a00", "#fdc57f", "#ffffff", "#9ecae9", "#08519c"]
)
SCALE = Normalize(-1, 1)

TaskPair = tuple[str, str]  # the calibrations of both tasks


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, one colour scale for all."""
    shown_rows = select_pairs(rows)
    models = group_rows(shown_rows, "model")
    depth = 1 + max(row["layer"] for row in shown_rows)
    most_pairs = style.count_most(models.values(), _pair_of)
    width = max(4.5, 0.42 * depth + 2.2)
    height = max(1.6, 0.24 * most_pairs + 1.3)
    figure, panels = style.make_panels(len(models), width, height, 1)
    for axes, ((model,), model_rows) in zip(panels, models.items(), strict=True):
        _draw_matrix(axes, model_rows, depth)
        axes.set_title(theme.format_title(model, "difference of accuracy relevance"))

    label = "matters more to the second task  ◂    ▸  matters more to the first"
    style.add_colour_bar(figure, panels, SCALE, COLOURS, label, 0.7)
    dot: style.LineStyle = {"marker": "o", "linestyle": "", "markersize": 3.5, "color": "black"}
    style.add_legend(
        figure,
        [
            (
                "significant (corrected over layers; larger than between halves of one task)",
                dot,
            )
        ],
        1,
    )
    return figure


def select_pairs(rows: style.Rows) -> style.Rows:
    """The rows of the pairs that are drawn, at most MAX_PAIRS per model.

    Pairs with a significant difference come first. Within both groups, pairs with the largest
    differences come first.
    """
    selected: set[tuple[str, ...]] = set()
    for (model,), model_rows in group_rows(rows, "model").items():
        pairs = group_rows(model_rows, "calibration", "rival")
        largest_differences = {
            pair: max(map(_rank_difference, pair_rows)) for pair, pair_rows in pairs.items()
        }
        ordered_pairs = sorted(pairs, key=lambda pair: largest_differences[pair], reverse=True)
        selected.update((model, *pair) for pair in ordered_pairs[:MAX_PAIRS])
    return [row for row in rows if (row["model"], *_pair_of(row)) in selected]


def _rank_difference(row: dict[str, Any]) -> tuple[bool, float]:
    """Significant differences rank above all others, and large ones above small ones."""
    return row["sure"], abs(row["difference"])


def _pair_of(row: dict[str, Any]) -> TaskPair:
    return row["calibration"], row["rival"]


def _list_pairs(rows: style.Rows) -> list[TaskPair]:
    """The pairs of some rows, in the order of the rows."""
    return list(dict.fromkeys(_pair_of(row) for row in rows))


def _draw_matrix(axes: Axes, rows: style.Rows, depth: int) -> None:
    """A row per pair, a cell per layer; pairs with a double dissociation are bold."""
    pairs = _list_pairs(rows)
    style.set_matrix_axes(axes, depth, [f"{first} − {second}" for first, second in pairs])
    axes.set_xlabel("layer (0 = first)")
    axes.set_xticks(range(depth))
    double_pairs = {_pair_of(row) for row in rows if row["is_double"]}
    for label, pair in zip(axes.get_yticklabels(), pairs, strict=True):
        label.set_fontweight("bold" if pair in double_pairs else "normal")
    for row in rows:
        _draw_cell(axes, row, pairs.index(_pair_of(row)))


def _draw_cell(axes: Axes, row: dict[str, Any], y: int) -> None:
    """The difference at one layer, with a dot if it is significant."""
    x = row["layer"]
    rounded = round(row["difference"], 2) + 0  # no negative zero
    text = style.with_minus_signs(f"{rounded:.2f}")
    square = draw_number_cell(axes, (x, y), row["difference"], text, COLOURS, SCALE)
    style.add_hint(square, style.with_minus_signs(_describe_cell(row)))
    if row["sure"]:
        colour = choose_text_colour(COLOURS(SCALE(row["difference"])))
        axes.plot(x + 0.40, y - 0.32, "o", markersize=2.6, color=colour, markeredgewidth=0)


def _describe_cell(row: dict[str, Any]) -> str:
    """The text for a cell under the pointer."""
    return (
        f"{row['calibration']} − {row['rival']}, layer {row['layer']}: {row['difference']:.3f} "
        f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}], q = {row['q_value']:.4f}, halves of one "
        f"task {row['null_low']:.3f} to {row['null_high']:.3f}, n = {row['n_samples']} and "
        f"{row['n_rival']}"
    )


def write_caption(rows: style.Rows) -> str:
    most_pairs = style.count_most(group_rows(rows, "model").values(), _pair_of)
    selection = ""
    if most_pairs > MAX_PAIRS:
        selection = (
            f" Only {MAX_PAIRS} of {most_pairs} pairs are drawn: those with significant "
            "differences first, then those with the largest. The CSV file has all pairs."
        )
    sample_counts = [row["n_samples"] for row in rows] + [row["n_rival"] for row in rows]
    counts = style.format_counts(sample_counts)
    return (
        "Accuracy that removing a layer costs the first task minus what it costs the second, each "
        f"as a share of the accuracy above chance (base model; calibration samples, {counts} per "
        "task). Dots: significant in a paired bootstrap, corrected over the layers of a pair "
        "(Benjamini and Hochberg, 5 %), and larger than between random halves of one task. Bold: "
        "significant layers on both sides, a double dissociation. With dots on one side only, one "
        f"task may simply be easier to break.{selection}"
    )
