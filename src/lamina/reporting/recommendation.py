"""Which model to take: the smallest one that keeps what was asked for, for each task and over all of them."""

from typing import Any

import duckdb

from lamina.tables.answers import rows

# What a variant keeps, whether that is enough and certain, and its place among all that answer: view macro `answered`.
BEST = """
WITH told AS MATERIALIZED (
    FROM answered($keep, text_at_most := $general_text, counted_from := $counted_from)
),
asked AS (
    SELECT model, question, name, list_sort(list(DISTINCT removed)) AS sizes,
        bool_and(recovery = 'none' AND healing = 'none') AS bare
    FROM told GROUP BY ALL
),
tested AS (
    SELECT model, count(DISTINCT variant) AS n_variants
    FROM (SELECT model, unnest(variants) AS variant FROM told) GROUP BY ALL
)
SELECT * FROM told JOIN asked USING (model, question, name) JOIN tested USING (model) WHERE place = 1
ORDER BY model, question <> 'recipe', question <> 'model', name
"""


def recommendations(
    connection: duckdb.DuckDBPyConnection, keep: float, general_text: float | None, counted_from: str = "zero"
) -> list[dict[str, Any]]:
    """One row per question: the variant to take, or the nearest one where none keeps enough (`kept_enough` false).

    `n_tried` counts the variants that answer it, of `n_variants` of the model, `sizes` are theirs, and `bare` says that
    none of them is repaired. `share` is the one of `kept` and `kept_above_chance` that is held against `keep`, and
    `certain` says that other test documents would show it too, of all that answer at once; None where that is unknown.

    Parameters
    ----------
    keep: share of the base model's number that must be left, above 0 to 1
    general_text: most that the perplexity of general text may be, times the base model's; None allows anything
    counted_from: `zero`, or `chance`: what the share is counted from
    """
    return rows(connection, BEST, {"keep": keep, "general_text": general_text, "counted_from": counted_from})
