"""Print the variants of a small study as a table on the terminal, the base model first."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TextIO

import duckdb
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lamina.models.sizes import DEFAULT_CONTEXT
from lamina.relevance.statistics import wilson_interval
from lamina_workflow.report.answers import query_rows
from lamina_workflow.report.formatting import DASH, format_measurement, format_percent
from lamina_workflow.report.paired_tests import NOISY, ratio_interval

MOST_ROWS = 16  # base models and variants of a study that is still shown
FILE_WIDTH = 160  # characters of a line without a terminal
UNLIMITED = 10_000
LEAST_NAME_WIDTH = 24  # of a variant, over several lines
OF_TEXT = " of text"  # which the title of a column leaves out
SIZES = ("layers", "parameters", "weights", "memory")
SCORES = ("score", "kept %", "n", "text ×", "n" + OF_TEXT)
SPEED = ("tokens/s, × base",)
COSTS = SIZES + SPEED
COLUMNS = SIZES + SCORES + SPEED

# A timed variant represents all variants of the same cost.
# The base model has no row of its own: it is timed with each variant, as ratios.
MEASURED = """
WITH scored AS (
    SELECT model, any_value(own_base) AS base_score, any_value(own_metric) AS metric, any_value(own_samples) AS n_samples,
        any_value(own_tasks) AS tasks
    FROM variants WHERE selector <> 'none' GROUP BY model HAVING count(DISTINCT calibration) = 1
),
bases AS (
    SELECT model, any_value(round(kv_bytes_per_token / kv_bytes_per_token_ratio)) AS kv_bytes,
        median(tokens_per_second / tokens_per_second_ratio) AS tokens_per_second
    FROM main_timings WHERE selector <> 'none' GROUP BY model
)
SELECT v.*, concat_ws('/', v.calibration, v.selector, 'removed=' || v.removed, v.repair, v.healing)
        AS variant,
    h.handle, m.n_layers,
    z.parameters, z.weights_bytes,
    CASE WHEN v.selector = 'none' THEN b.kv_bytes ELSE e.kv_bytes_per_token END AS kv_bytes_per_token,
    CASE WHEN v.selector = 'none' THEN b.tokens_per_second ELSE e.tokens_per_second END
        AS tokens_per_second,
    e.tokens_per_second_ratio, e.tokens_per_second_ratio_stderr, e.repeats,
    CASE WHEN v.selector = 'none' THEN s.base_score ELSE v.own_value END AS score,
    coalesce(v.own_metric, s.metric) AS metric, coalesce(v.own_samples, s.n_samples) AS n_questions,
    contains(coalesce(v.own_tasks, s.tasks), ', ') AS is_mean_of_tasks
FROM variants AS v JOIN models AS m USING (model)
LEFT JOIN variant_sizes AS z USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN scored AS s USING (model)
LEFT JOIN handles AS h USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN bases AS b USING (model)
LEFT JOIN main_timings AS e
    ON v.timed = concat_ws('/', e.model, e.calibration, e.selector, 'removed=' || e.removed,
        e.repair, e.healing)
ORDER BY v.model, v.selector <> 'none', v.removed, v.calibration, v.selector, v.repair <> 'none', v.repair, v.healing
"""
NOTE = (
    "weights: as loaded here; an export has the number format of the checkpoint. memory: weights "
    f"and a KV cache of {DEFAULT_CONTEXT:,} tokens. score: on the task. kept: share of the base "
    "model's score. text: perplexity as a multiple of the base model's. ± and [ ]: 95 % intervals."
)


def print_variants(connection: duckdb.DuckDBPyConnection, file: TextIO) -> None:
    """Print what each variant keeps and costs, unless the study fills more than a screen.

    If one table is too wide for the terminal, there is one of scores and one of costs.
    """
    rows = query_rows(connection, MEASURED)
    if all(row["selector"] == "none" for row in rows) or len(rows) > MOST_ROWS:
        return
    console = Console(file=file, width=None if file.isatty() else FILE_WIDTH, highlight=False)
    for table in tabulate_variants(rows, console.width):
        console.print(table)
    console.print(NOTE, soft_wrap=True)
    console.print()


def tabulate_variants(rows: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """Tables of MEASURED rows that fit into `width` characters.

    Names of variants are wrapped; handles and numbers are not.
    """
    table = _tabulate(rows, COLUMNS)
    numbers_width = _measure_width(_tabulate(rows, COLUMNS, has_names=False))
    if numbers_width + LEAST_NAME_WIDTH <= width:
        return [table]
    return [_tabulate(rows, SCORES), _tabulate(rows, COSTS, has_names=False)]


def _measure_width(table: Table) -> int:
    """The width of an uncut table, in characters."""
    console = Console(width=UNLIMITED)
    return Measurement.get(console, console.options, table).maximum


def _tabulate(
    rows: Sequence[Mapping[str, Any]], columns: Collection[str], has_names: bool = True
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    if has_names:
        table.add_column("variant", overflow="fold")
    for title in columns:
        table.add_column(title.removesuffix(OF_TEXT), justify="right", no_wrap=True)
    is_one_model = len({row["model"] for row in rows}) == 1
    for row in rows:
        name = "base model" if row["selector"] == "none" else row["variant"]
        full_name = name if is_one_model else f"{row['model']}/{name}"
        names = [full_name] if has_names else []
        handle = row["handle"] or ("base" if not has_names else "")
        cells = _format_cells(row)
        table.add_row(handle, *names, *(cells[title] for title in columns))
    return table


def _format_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a variant by their column titles."""
    memory = None
    if row["kv_bytes_per_token"] is not None:
        memory = row["weights_bytes"] + DEFAULT_CONTEXT * row["kv_bytes_per_token"]
    return {
        "layers": f"{row['n_layers'] - row['layers']:g}",
        "parameters": _format_amount(row["parameters"], ""),
        "weights": _format_amount(row["weights_bytes"], "B"),
        "memory": _format_amount(memory, "B"),
        "score": _format_score(row),
        "kept %": format_percent(row["own_kept"], row["own_kept_stderr"]),
        "n": _format_count(row["n_questions"]),
        "text ×": format_measurement(row["text_ratio"], row["text_ratio_stderr"], 2),
        "n" + OF_TEXT: _format_count(row["text_samples"]),
        "tokens/s, × base": _format_speed(row),
    }


def _format_score(row: Mapping[str, Any]) -> str:
    """The score; a share of right answers to one task has Wilson's interval, valid even at 1."""
    if row["score"] is None:
        return DASH
    is_share = row["metric"].startswith("acc") and not row["is_mean_of_tasks"]
    if not is_share or not row["n_questions"]:
        return format_measurement(row["score"], row["own_stderr"])
    low, high = wilson_interval(row["score"] * row["n_questions"], row["n_questions"])
    return f"{row['score']:.2f} [{low:.2f}, {high:.2f}]"


def _format_count(number: float | None) -> str:
    return DASH if number is None else f"{number:,.0f}"


def _format_amount(number: float | None, unit: str) -> str:
    """A number with three digits and a suitable prefix."""
    if number is None:
        return DASH
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.0f} {unit}"


def _format_speed(row: Mapping[str, Any]) -> str:
    """Tokens per second that the base model generates; for variants, the ratio to that.

    Each variant is timed in turn with the base model, so the ratio is more telling than two speeds.
    """
    if row["tokens_per_second"] is None:
        return DASH
    speed = f"{row['tokens_per_second']:.3g}"
    ratio = row["tokens_per_second_ratio"]
    stderr = row["tokens_per_second_ratio_stderr"]
    if row["selector"] == "none" or stderr is None:
        return speed
    low, high = ratio_interval(ratio, stderr, int(row["repeats"]))
    if high > NOISY * low:
        return "too noisy"
    return f"× {ratio:.2f} [{low:.2f}, {high:.2f}]"
