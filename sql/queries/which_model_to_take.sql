-- Which model should be taken?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_model_to_take.sql
--
-- One row per question: for a task, for all tasks in one model, for all by one recipe (a selector
-- and a repair): the smallest variant that keeps what is asked for, or the nearest one where none
-- does (kept_enough false). Variables say what is asked for: keep (0.95), general_text (any; at
-- most so many times the base model's perplexity), counted_from ('zero' or 'chance') and allowed
-- (any; a list of variants, by which the answer is restricted): SET VARIABLE keep = 0.9.
-- share, certain       what is compared with `keep`; whether other test documents would show it
--                      too, for all variants that answer the question at once
-- n_needed             test documents that would decide whether it keeps enough, if it goes on as
--                      on these; null where that is unknown
-- place                rank among all that answer it: the smallest that keeps enough first; among
--                      equally small ones those that are certain, then the one that is best on
--                      general text, then the one that keeps most, then the one with less done to
--                      it (a healing whose best step is step 0 changed nothing). Where none keeps
--                      enough, the one that keeps most
-- failed_gates, untold_gates  tasks on which its study demands more than it reaches, and on which this
--                      cannot be told. A variant that fails a gate does not keep enough, and comes
--                      after all others
-- n_tried, n_variants  variants that answer the question, and all of the model; sizes and bare are
--                      of the former
-- Empty where no variant was tested on its own task, or on two tasks.
WITH wanted AS (
    SELECT coalesce(getvariable('keep'), 0.95) AS keep, getvariable('general_text') AS text_at_most,
        coalesce(getvariable('counted_from'), 'zero') = 'chance' AS from_chance
),
counted AS (
    SELECT a.*, keep, text_at_most,
        CASE WHEN from_chance THEN kept_above_chance ELSE kept END AS share,
        CASE WHEN from_chance THEN kept_above_chance_stderr ELSE kept_stderr END AS share_stderr,
        CASE WHEN from_chance THEN kept_above_chance_step ELSE kept_step END AS share_step,
        count(*) OVER (PARTITION BY model, question, name) AS n_tried
    FROM answers AS a, wanted
),
gated AS (
    SELECT concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing) AS variant,
        failed_gates, untold_gates
    FROM gated_variants
),
gates_of_answers AS (
    SELECT a.variants, string_agg(DISTINCT failed_gates, ', ') AS failed_gates,
        string_agg(DISTINCT untold_gates, ', ') AS untold_gates
    FROM (SELECT DISTINCT variants FROM counted) AS a JOIN gated AS g ON list_contains(a.variants, g.variant)
    GROUP BY a.variants
),
judged AS (
    SELECT * EXCLUDE (share_step, keep, text_at_most),
        certain(share - keep, share_stderr, share_step, n_tried) AND untold_gates IS NULL AS certain,
        n_samples * CASE
            WHEN share > keep THEN z_above(0.025 / n_tried) ** 2 * (share_stderr ** 2 + (share - keep) * share_step)
            ELSE 1.959964 ** 2 * share_stderr ** 2
        END / nullif(share - keep, 0) ** 2 AS n_needed,
        coalesce(share >= keep AND (text_at_most IS NULL OR text_ratio <= text_at_most), false)
            AND failed_gates IS NULL AS kept_enough
    FROM counted LEFT JOIN gates_of_answers USING (variants)
),
placed AS MATERIALIZED (
    SELECT *, row_number() OVER (
        PARTITION BY model, question, name
        ORDER BY kept_enough DESC, failed_gates IS NOT NULL, CASE WHEN kept_enough THEN layers ELSE 0 END DESC,
            kept_enough AND coalesce(certain, false) DESC,
            CASE WHEN kept_enough OR at_chance THEN coalesce(text_ratio, 'inf'::DOUBLE) ELSE 0 END,
            share DESC NULLS LAST, healing = 'none' DESC, repair = 'none' DESC, variants) AS place
    FROM judged
),
asked AS (
    SELECT model, question, name, list_sort(list(DISTINCT removed)) AS sizes,
        bool_and(repair = 'none' AND healing = 'none') AS bare
    FROM placed GROUP BY ALL
),
tested AS (
    SELECT model, count(DISTINCT variant) AS n_variants
    FROM (SELECT model, unnest(variants) AS variant FROM placed) GROUP BY ALL
)
SELECT question, name, selector, removed, repair, kept_enough, score, base_score, kept, kept_stderr, n_samples, text_ratio,
    * EXCLUDE (question, name, selector, removed, repair, kept_enough, score, base_score, kept, kept_stderr, n_samples,
        text_ratio)
FROM placed JOIN asked USING (model, question, name) JOIN tested USING (model)
WHERE getvariable('allowed') IS NULL OR list_has_all(getvariable('allowed'), variants)
QUALIFY row_number() OVER (PARTITION BY model, question, name ORDER BY place) = 1
ORDER BY model, question <> 'recipe', question <> 'model', name;
