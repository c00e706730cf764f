"""The gain from removing layers by length of the prompt and batch [arXiv 2605.15491, table 5]."""

import math
from typing import Any, NamedTuple

import duckdb
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import draw_number_cell
from lamina_workflow.report.figures.efficiency import format_runs, name_variant, sort_timings
from lamina_workflow.report.paired_tests import NOISY, ratio_interval

TITLE = "What pruning buys, by prompt and batch"
POSITION = 91
FOLDED = True
TABLES = ("efficiency", "plans", "models")
QUERIES = ("what_pruning_buys_by_load",)
NEEDS = {"loads": 2}
# White is the base model's score; blue is better and orange is worse, by factors up to 2.
COLOURS = LinearSegmentedColormap.from_list(
    "advantage", ["#b04a00", "#f6c9a5", "#ffffff", "#a9cfe8", "#0b5a94"]
)
SCALE = Normalize(-1, 1)
INCHES_PER_ROW = 0.3
INCHES_PER_LOAD = 0.55


class Measure(NamedTuple):
    """A ratio to the base model, shown in a panel."""

    ratio: str  # its column
    value: str  # the column of the measured quantity
    unit: str
    title: str
    is_speed: bool  # whether more is better


MEASURES = (
    Measure("latency_ratio", "latency_ms", "ms", "prefill latency", False),
    Measure("tokens_per_second_ratio", "tokens_per_second", "tokens/s", "tokens per second", True),
    Measure("peak_memory_ratio", "peak_memory_bytes", "bytes", "peak memory", False),
)


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Every timing of a run with several prompts or batches."""
    rows = answer_question(connection, QUERIES[0])
    return [row for row in rows if row["n_loads"] > 1]


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and measure: variants down, prompts and batches across."""
    groups = group_rows(rows, "model")
    measures = [measure for measure in MEASURES if _is_measured(rows, measure)]
    loads = list(group_rows(rows, "prompt", "batch"))
    loads.sort()
    heights = []
    for model_rows in groups.values():
        heights.append(INCHES_PER_ROW * len(_list_variants(model_rows)) + 1.1)
    width = INCHES_PER_LOAD * len(loads) + 0.4
    name_width = 0.07 * max(len(name) for name in _list_variants(rows))
    figure_size = (max(6.5, width * len(measures) + name_width), sum(heights) + 0.9)
    figure = Figure(figsize=figure_size, layout="constrained")
    grid = figure.subplots(len(groups), len(measures), squeeze=False, height_ratios=heights)
    for axes_row, ((model,), model_rows) in zip(grid, groups.items(), strict=True):
        variants = _list_variants(model_rows)
        for index, (axes, measure) in enumerate(zip(axes_row, measures, strict=True)):
            _set_up_panel(axes, variants if index == 0 else [""] * len(variants), loads)
            axes.set_title(theme.format_title(model, measure.title))
            for row in model_rows:
                if row[measure.ratio] is not None and math.isfinite(row[measure.ratio]):
                    cell = (loads.index((row["prompt"], row["batch"])), variants.index(_name(row)))
                    _draw_ratio(axes, cell, row, measure)
    _add_colour_bar(figure, grid)
    return figure


def _is_measured(rows: style.Rows, measure: Measure) -> bool:
    """Whether a measure has numbers: peak memory has none on a CPU."""
    ratios = [row[measure.ratio] for row in rows]
    return any(ratio is not None and math.isfinite(ratio) for ratio in ratios)


def _name(row: dict[str, Any]) -> str:
    return f"{name_variant(row)}, {format_runs(row['runs']).removeprefix('removed ')}"


def _list_variants(rows: style.Rows) -> list[str]:
    """The timed variants by name, those with the fewest removed layers first."""
    return list(dict.fromkeys(_name(row) for row in sort_timings(rows)))


def _set_up_panel(axes: Axes, names: list[str], loads: list[tuple[Any, ...]]) -> None:
    style.set_matrix_axes(axes, len(loads), names)
    load_names = [f"{prompt:,} × {batch:,}" for prompt, batch in loads]
    style.set_slanted_names(axes, range(len(loads)), load_names)
    axes.set_xlabel("prompt tokens × batch size")


def _draw_ratio(axes: Axes, cell: tuple[int, int], row: dict[str, Any], measure: Measure) -> None:
    """A ratio and half the width of its interval; a word if the interval is too wide."""
    ratio = row[measure.ratio]
    advantage = math.log2(ratio if measure.is_speed else 1 / ratio)
    text = f"{ratio:.2f}"
    interval = ""
    stderr = row.get(f"{measure.ratio}_stderr")
    if stderr is not None:
        ci_low, ci_high = ratio_interval(ratio, stderr, row["repeats"])
        text += f"\n±{(ci_high - ci_low) / 2:.2f}"
        interval = f" [{ci_low:.3f}, {ci_high:.3f}]"
        if ci_high > NOISY * ci_low:
            advantage = 0.0
            text = "too\nnoisy"
    square = draw_number_cell(axes, cell, advantage, text, COLOURS, SCALE)
    hint = (
        f"{_name(row)}, prompt {row['prompt']:,}, batch {row['batch']}: {ratio:.3f}{interval}, "
        f"{row[measure.value]:,.4g} {measure.unit}, n = {row['repeats']}"
    )
    style.add_hint(square, hint)


def _add_colour_bar(figure: Figure, grid: Any) -> None:
    label = "times better than the base model"
    bar = style.add_colour_bar(
        figure, grid.ravel().tolist(), SCALE, COLOURS, label, 0.5, extend="both"
    )
    bar.ax.xaxis.set_major_locator(
        FixedLocator([math.log2(ratio) for ratio in (0.5, 0.7, 1, 1.4, 2)])
    )
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda advantage, _: f"{2**advantage:.2g}"))


def write_caption(rows: style.Rows) -> str:
    first = rows[0]
    main = next(row for row in rows if row["main"])
    repeats = style.format_counts(row["repeats"] for row in rows)
    return (
        "Ratios to the base model, which was timed in turn with each variant, for every prompt "
        f"length and batch size ({repeats} repetitions each): geometric mean, and below it half "
        "the width of its 95 % interval (Student's t of the logarithms). Latency is that of the "
        f"prompt alone; {first['generate']} tokens are generated after it, {first['dtype']} on "
        f"{first['device']}. A cell is too noisy where the upper end of its interval is more than "
        f"{NOISY} times the lower end. Everything else on this page uses {main['prompt']:,} × "
        f"{main['batch']:,}. The CSV file has milliseconds, tokens per second and bytes."
    )
