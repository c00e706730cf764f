"""Recommendations: the smallest model that keeps a given share of its task, for each task and over all of them."""

from typing import Any

import duckdb

from lamina.report.answers import answer

# What a variant keeps, whether that is enough and certain, and its place among all that answer: view macro `answered`.
QUESTION = "which_model_to_take"


def recommendations(
    connection: duckdb.DuckDBPyConnection, keep: float, general_text: float | None, counted_from: str = "zero"
) -> list[dict[str, Any]]:
    """One row per question: the variant to take, or the nearest one if none keeps enough (`kept_enough` false).

    `n_tried` counts the variants that answer the question, of the model's `n_variants`; `sizes` are their sizes, and
    `bare` says that none of them is repaired. `share` is `kept` or `kept_above_chance`, whichever is compared with
    `keep`. `certain` says that other test documents would show it too, for all these variants at once; None if unknown.

    Parameters
    ----------
    keep: share of the base model's number that must be left, above 0 to 1
    general_text: most that the perplexity of general text may be, times the base model's; None allows anything
    counted_from: `zero`, or `chance`: what the share is counted from
    """
    return answer(connection, QUESTION, keep=keep, general_text=general_text, counted_from=counted_from)
