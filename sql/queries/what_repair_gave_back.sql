-- What did repair and healing recover?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_repair_gave_back.sql
--
-- One row per variant and own task or general text, for calibrations with a repaired variant. Within
-- a plan the variant without repair comes first, then the others by gain, the largest first.
-- own                   whether the task is the calibration's own; the others are texts
-- value, stderr         result on n_samples test documents; pruned_value is the result of the same
--                       plan without repair
-- gain, gain_stderr     difference of the two; positive = better; paired over documents where known
-- loss, loss_stderr     cost of pruning before repair
-- recovered             gain / loss: 1 = all recovered, negative = repair made it worse; null if
--                       pruning cost less than two standard errors, which is no significant loss
-- certain               whether other test documents would show a gain (or harm) too, for all
--                       repairs of the plan at once; null where the error is unknown
-- refused               selectors that have no plan for the calibration
-- Empty where no variant with a repair or a healing was benchmarked on its own task or on general text.
WITH tested AS (
    SELECT *, bool_or(repair <> 'none' OR healing <> 'none') OVER (PARTITION BY model, calibration) AS is_repaired
    FROM scores WHERE selector <> 'none' AND (own OR general_text)
),
without AS (
    SELECT model, calibration, string_agg(DISTINCT selector, ',' ORDER BY selector) AS refused
    FROM plans WHERE refused IS NOT NULL GROUP BY ALL
)
SELECT t.model, t.calibration, t.task, t.own, t.metric, t.selector, t.removed, t.repair, t.healing,
    t.base_value, t.base_stderr, t.chance, r.pruned_value, t.value, t.stderr, gain, gain_stderr, loss, loss_stderr,
    CASE WHEN loss > 2 * loss_stderr THEN gain / loss END AS recovered,
    certain(abs(gain), gain_stderr, abs(gain) / t.n_samples, count(gain) OVER plan) AS certain,
    t.n_samples, w.refused
FROM tested AS t
LEFT JOIN repairs AS r USING (model, calibration, selector, removed, repair, healing, task)
LEFT JOIN without AS w USING (model, calibration)
WHERE is_repaired
WINDOW plan AS (PARTITION BY t.model, t.calibration, t.task, t.selector, t.removed)
ORDER BY t.model, t.calibration, t.task, t.selector, t.removed, gain DESC NULLS FIRST, t.repair, t.healing;
