"""The variants of a small study as a table on the terminal, the base model first."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import duckdb
from rich import box
from rich.console import Console
from rich.table import Table

from lamina.models.sizes import DEFAULT_CONTEXT
from lamina.relevance.statistics import wilson_interval
from lamina_workflow.report.answers import query_rows
from lamina_workflow.report.formatting import DASH, format_measurement, format_percent
from lamina_workflow.report.paired_tests import NOISY, ratio_interval

MOST_ROWS = 16  # of the base models and variants of a study that is still shown
FILE_WIDTH = 160  # characters of a line where there is no terminal

# A timed variant stands for those of the same cost.
# The base model has no row of its own: it is timed with each variant, as ratios.
MEASURED = """
WITH scored AS (
    SELECT model, any_value(own_base) AS base_score, any_value(own_metric) AS metric, any_value(own_samples) AS n_samples
    FROM variants WHERE removed > 0 GROUP BY model HAVING count(DISTINCT calibration) = 1
),
bases AS (
    SELECT model, any_value(round(kv_bytes_per_token / kv_bytes_per_token_ratio)) AS kv_bytes,
        median(tokens_per_second / tokens_per_second_ratio) AS tokens_per_second
    FROM main_timings WHERE removed > 0 GROUP BY model
)
SELECT v.*, concat_ws('/', v.calibration, v.selector, 'removed=' || v.removed, v.repair, v.healing)
        AS variant,
    h.handle, m.n_layers,
    z.parameters, z.weights_bytes,
    CASE WHEN v.removed = 0 THEN b.kv_bytes ELSE e.kv_bytes_per_token END AS kv_bytes_per_token,
    CASE WHEN v.removed = 0 THEN b.tokens_per_second ELSE e.tokens_per_second END
        AS tokens_per_second,
    e.tokens_per_second_ratio, e.tokens_per_second_ratio_stderr, e.repeats,
    CASE WHEN v.removed = 0 THEN s.base_score ELSE v.own_value END AS score,
    coalesce(v.own_metric, s.metric) AS metric, coalesce(v.own_samples, s.n_samples) AS n_questions
FROM variants AS v JOIN models AS m USING (model)
LEFT JOIN variant_sizes AS z USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN scored AS s USING (model)
LEFT JOIN handles AS h USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN bases AS b USING (model)
LEFT JOIN main_timings AS e
    ON v.timed = concat_ws('/', e.model, e.calibration, e.selector, 'removed=' || e.removed,
        e.repair, e.healing)
ORDER BY v.model, v.removed, v.calibration, v.selector, v.repair <> 'none', v.repair, v.healing
"""
NOTE = (
    "Weights: as loaded here; an export has the number format of the checkpoint. score: of the task. "
    "kept: share of the base model's score. Memory: weights and a cache of "
    f"{DEFAULT_CONTEXT:,} tokens. Text: perplexity as a multiple of the base model's. "
    "± and [ ]: 95 % intervals."
)


def print_variants(connection: duckdb.DuckDBPyConnection, file: TextIO) -> None:
    """Print what each variant keeps and costs; nothing for a study of more than a screen."""
    rows = query_rows(connection, MEASURED)
    if not any(row["removed"] for row in rows) or len(rows) > MOST_ROWS:
        return
    console = Console(file=file, width=None if file.isatty() else FILE_WIDTH, highlight=False)
    console.print(tabulate_variants(rows))
    console.print(NOTE, soft_wrap=True)
    console.print()


def tabulate_variants(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of rows of MEASURED."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("variant", overflow="fold")
    for title in (
        "layers",
        "parameters",
        "weights",
        "memory",
        "score",
        "kept %",
        "n",
        "text ×",
        "n",
    ):
        table.add_column(title, justify="right")
    table.add_column("tokens/s, × base", justify="right")
    is_one_model = len({row["model"] for row in rows}) == 1
    for row in rows:
        name = row["variant"] if row["removed"] else "base model"
        full_name = name if is_one_model else f"{row['model']}/{name}"
        table.add_row(row["handle"] or "", full_name, *_format_cells(row))
    return table


def _format_cells(row: Mapping[str, Any]) -> list[str]:
    memory = None
    if row["kv_bytes_per_token"] is not None:
        memory = row["weights_bytes"] + DEFAULT_CONTEXT * row["kv_bytes_per_token"]
    return [
        f"{row['n_layers'] - row['layers']:g}",
        _format_amount(row["parameters"], ""),
        _format_amount(row["weights_bytes"], "B"),
        _format_amount(memory, "B"),
        _format_score(row),
        format_percent(row["own_kept"], row["own_kept_stderr"]),
        _format_count(row["n_questions"]),
        format_measurement(row["text_ratio"], row["text_ratio_stderr"], 2),
        _format_count(row["text_samples"]),
        _format_speed(row),
    ]


def _format_score(row: Mapping[str, Any]) -> str:
    """The score on the task; a share of right answers with Wilson's interval, which holds at 1."""
    if row["score"] is None:
        return DASH
    if not row["metric"].startswith("acc") or not row["n_questions"]:
        return format_measurement(row["score"], row["own_stderr"])
    low, high = wilson_interval(row["score"] * row["n_questions"], row["n_questions"])
    return f"{row['score']:.2f} [{low:.2f}, {high:.2f}]"


def _format_count(number: float | None) -> str:
    return DASH if number is None else f"{number:,.0f}"


def _format_amount(number: float | None, unit: str) -> str:
    """A number with three digits and the prefix that suits it."""
    if number is None:
        return DASH
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.0f} {unit}"


def _format_speed(row: Mapping[str, Any]) -> str:
    """Tokens that the base model generates in a second; of variants their ratio to that.

    Each variant is timed in turn with the base model, so that the ratio means more than two speeds.
    """
    if row["tokens_per_second"] is None:
        return DASH
    speed = f"{row['tokens_per_second']:.3g}"
    ratio = row["tokens_per_second_ratio"]
    stderr = row["tokens_per_second_ratio_stderr"]
    if not row["removed"] or stderr is None:
        return speed
    low, high = ratio_interval(ratio, stderr, int(row["repeats"]))
    if high > NOISY * low:
        return "too noisy"
    return f"× {ratio:.2f} [{low:.2f}, {high:.2f}]"
