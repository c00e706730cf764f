-- What did repair and healing give back?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_repair_gave_back.sql
--
-- One row per repaired variant and the calibration's own task, best gain first within a plan.
-- gain, gain_stderr     against the same plan without repair; positive = better; paired over documents where known
-- loss, loss_stderr     what pruning had cost
-- recovered             gain / loss: 1 = all given back, negative = repair made it worse; null where pruning cost less
--                       than two standard errors, so that there was nothing certain to give back
-- certain               other test documents would show a gain (or harm) too, of all repairs of the plan at once; null where
--                       the error is unknown
-- Empty where a study lists no repair or healing, or not beside `none`.
SELECT model, calibration, task, metric, selector, removed, repair, healing,
    base_value, pruned_value, value, stderr, gain, gain_stderr, loss, loss_stderr,
    CASE WHEN loss > 2 * loss_stderr THEN gain / loss END AS recovered,
    certain(abs(gain), gain_stderr, 0, count(*) OVER plan) AS certain,
    n_samples
FROM repairs
WHERE own
WINDOW plan AS (PARTITION BY model, calibration, task, selector, removed)
ORDER BY model, calibration, task, selector, removed, gain DESC, repair, healing;
