"""Which model to take: the smallest one that keeps what was asked for, for each task and over all of them."""

from collections.abc import Iterable
from typing import Any

import duckdb

from lamina.figures.style import Z95
from lamina.tables.answers import rows

# One row per question and variant that answers it: a calibration's own tasks; all tasks with one model, where variants
# were tested on several; all calibrations with one recipe (selector and repair), each with a plan of its own.
ANSWERS = """
WITH general AS (  -- a calibration of text has no other text to lose
    SELECT model, calibration, selector, removed, recovery, healing, exp(-avg(ln(kept))) AS text_ratio,
        exp(-avg(ln(kept))) * sqrt(sum((kept_stderr / kept) ** 2)) / count(*) AS text_ratio_stderr,
        sum(n_samples) AS text_samples
    FROM scores WHERE metric = 'perplexity' AND NOT own GROUP BY ALL
),
others AS (
    SELECT model, calibration, selector, removed, recovery, healing, count(*) AS n_others, avg(kept) AS others_kept,
        sqrt(sum(kept_stderr ** 2)) / count(*) AS others_kept_stderr, sum(n_samples) AS others_samples
    FROM scores WHERE higher_is_better AND NOT own GROUP BY ALL
),
tested AS (
    SELECT model, calibration, selector, removed, recovery, healing, sum(n_samples) AS all_samples,
        bool_and(own AND base_value - $z * base_stderr <= chance) FILTER (own AND chance IS NOT NULL) AS at_chance
    FROM scores WHERE higher_is_better GROUP BY ALL
),
known AS (
    -- half a layer is half as much
    SELECT v.*, concat_ws('/', model, calibration, selector, 'removed=' || removed, recovery, healing) AS variant,
        v.removed / if(coalesce(r.component, 'layer') = 'layer', 1, 2) AS layers,
        text_ratio, text_ratio_stderr, text_samples, n_others, others_kept, others_kept_stderr, others_samples,
        all_samples, coalesce(at_chance, false) AS at_chance
    FROM variants AS v
    LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
    LEFT JOIN general USING (model, calibration, selector, removed, recovery, healing)
    LEFT JOIN others USING (model, calibration, selector, removed, recovery, healing)
    LEFT JOIN tested USING (model, calibration, selector, removed, recovery, healing)
    WHERE removed > 0
),
recipes AS (
    SELECT model, selector, removed, recovery, healing, layers, count(*) AS n_calibrations,
        avg(own_kept) AS kept, sqrt(sum(own_kept_stderr ** 2)) / count(*) AS kept_stderr, sum(own_samples) AS n_samples,
        -- all of them read the same texts, and most were timed as one, so these errors go together
        exp(avg(ln(text_ratio))) AS text_ratio,
        exp(avg(ln(text_ratio))) * avg(text_ratio_stderr / text_ratio) AS text_ratio_stderr,
        max(text_samples) AS text_samples, avg(parameters_ratio) AS parameters_ratio,
        avg(latency_ratio) AS latency_ratio, avg(latency_ratio_stderr) AS latency_ratio_stderr,
        min(latency_repeats) AS latency_repeats, list(variant ORDER BY calibration) AS variants
    FROM known WHERE own_kept IS NOT NULL AND NOT at_chance
    GROUP BY model, selector, removed, recovery, healing, layers
),
whole AS (  -- a mean over fewer calibrations is another question
    FROM recipes QUALIFY n_calibrations > 1 AND n_calibrations = max(n_calibrations) OVER (PARTITION BY model)
)
SELECT 'task' AS question, model, calibration AS name, own_tasks AS tasks, 1 AS n_tasks, selector, removed, recovery,
    healing, layers, units, own_kept AS kept, own_kept_stderr AS kept_stderr, own_samples AS n_samples, text_ratio,
    text_ratio_stderr, text_samples, n_others, others_kept, others_kept_stderr, others_samples, parameters_ratio,
    latency_ratio, latency_ratio_stderr, latency_repeats,
    [variant] AS variants, at_chance
FROM known WHERE own_kept IS NOT NULL
UNION ALL BY NAME
SELECT 'model' AS question, model, '' AS name, '' AS tasks, n_tasks, selector, removed, recovery, healing, layers,
    units, mean_kept AS kept, mean_kept_stderr AS kept_stderr, all_samples AS n_samples, text_ratio, text_ratio_stderr,
    text_samples, parameters_ratio, latency_ratio, latency_ratio_stderr, latency_repeats,
    [variant] AS variants,
    false AS at_chance
FROM known WHERE n_tasks > 1 QUALIFY n_tasks = max(n_tasks) OVER (PARTITION BY model)
UNION ALL BY NAME
SELECT 'recipe' AS question, model, '' AS name, '' AS tasks, n_calibrations AS n_tasks,
    * EXCLUDE (model, n_calibrations), false AS at_chance
FROM whole
ORDER BY model, question <> 'recipe', question <> 'model', name, variants
"""


def recommendations(
    connection: duckdb.DuckDBPyConnection, keep: float, general_text: float | None
) -> list[dict[str, Any]]:
    """One row per question: the variant to take, or the nearest one where none keeps enough (`kept_enough` false).

    `n_tried` counts the variants that answer it, of `n_variants` of the model, `sizes` are theirs, and `bare` says that
    none of them is repaired.

    The smallest wins; of equally small ones those that keep enough at the lower end of their 95 % interval
    (`certain`), of these the one that is best on general text, then the one that keeps most. Of equals, which a
    healing is with what it began from where no step of it was better, the one with less done to it.

    Parameters
    ----------
    keep: share of the base model's number that must be left, above 0 to 1
    general_text: most that the perplexity of general text may be, times the base model's; None allows anything
    """
    answers = rows(connection, ANSWERS, {"z": Z95})
    questions: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in answers:
        row["certain"] = row["kept"] - Z95 * (row["kept_stderr"] or 0) >= keep
        row["kept_enough"] = row["kept"] >= keep and spared(row, general_text)
        questions.setdefault((row["model"], row["question"], row["name"]), []).append(row)
    variants = {
        name: {key for row in answers if row["model"] == name for key in row["variants"]} for name, *_ in questions
    }
    return [
        best(tried)
        | {"n_tried": len(tried), "n_variants": len(variants[model])}
        | {"sizes": sorted({row["removed"] for row in tried})}
        | {"bare": all(row["recovery"] == row["healing"] == "none" for row in tried)}
        for (model, *_), tried in questions.items()
    ]


def spared(row: dict[str, Any], general_text: float | None) -> bool:
    """Whether general text has suffered no more than was allowed; where it was not measured, nobody knows."""
    if general_text is None:
        return True
    return row["text_ratio"] is not None and row["text_ratio"] <= general_text


def best(tried: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of the variants that keep enough the smallest; of none, the one that keeps most."""
    enough = [row for row in tried if row["kept_enough"]]
    if not enough:
        return max(tried, key=lambda row: row["kept"])
    return max(
        enough,
        key=lambda row: (
            *(row["layers"], row["certain"], -(row["text_ratio"] or float("inf")), row["kept"]),
            *(row["healing"] == "none", row["recovery"] == "none"),
        ),
    )
