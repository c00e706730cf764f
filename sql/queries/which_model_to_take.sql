-- Which model should be taken?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_model_to_take.sql
--
-- One row per question: for one task, for all tasks in one model, or for all tasks by one recipe (a
-- selector and a repair). The answer is the smallest variant that keeps what is required; if there is
-- none, it is the nearest one (kept_enough false). Variables set the requirements, as in SET VARIABLE
-- keep = 0.9: keep (0.95), general_text (any; the largest allowed ratio of perplexity to the base
-- model's), counted_from ('zero' or 'chance') and allowed (any; a list of variants to choose from).
-- share, certain       the share that is compared with `keep`; whether other test documents would
--                      show the same, for all candidates of the question at once
-- n_needed             number of test documents that would decide whether it keeps enough, if it does
--                      as well on them as on these; null where unknown
-- place                rank among all candidates. Those that keep enough come first, the smallest of
--                      them before the others. Equally small ones are ordered by: certain, best on
--                      general text, largest share, no healing, no repair (a healing whose best step
--                      is step 0 changed nothing). If none keeps enough, the largest share is first
-- failed_gates, untold_gates  tasks on which it fails a gate of its study, and on which this cannot
--                      be decided. A variant that fails a gate does not keep enough, and comes after
--                      all others
-- n_tried, n_variants  candidates of the question, and variants of the model; sizes and bare describe
--                      the candidates
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
