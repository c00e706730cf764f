-- Which model should be taken?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_model_to_take.sql
--
-- One row per question: for a task, for all tasks in one model, for all by one recipe (a selector and a repair): the
-- smallest variant that keeps what is asked for, or the nearest one where none does (kept_enough false).
-- Variables say what is asked for: keep (0.95), general_text (any; at most so many times the base model's perplexity),
-- counted_from ('zero' or 'chance') and repairs (any; a list): SET VARIABLE keep = 0.9.
-- share, certain       what is held against `keep`; whether other test documents would show it too
-- n_tried, n_variants  variants that answer the question, and all of the model; sizes and bare are of the former
-- Empty where no variant was tested on its own task, or on two tasks.
WITH told AS MATERIALIZED (
    FROM answered(
        coalesce(getvariable('keep'), 0.95),
        text_at_most := getvariable('general_text'),
        counted_from := coalesce(getvariable('counted_from'), 'zero')
    )
),
asked AS (
    SELECT model, question, name, list_sort(list(DISTINCT removed)) AS sizes,
        bool_and(repair = 'none' AND healing = 'none') AS bare
    FROM told GROUP BY ALL
),
tested AS (
    SELECT model, count(DISTINCT variant) AS n_variants
    FROM (SELECT model, unnest(variants) AS variant FROM told) GROUP BY ALL
)
SELECT * FROM told JOIN asked USING (model, question, name) JOIN tested USING (model)
WHERE getvariable('repairs') IS NULL OR list_contains(getvariable('repairs'), repair)
QUALIFY row_number() OVER (PARTITION BY model, question, name ORDER BY place) = 1
ORDER BY model, question <> 'recipe', question <> 'model', name;
