-- What does pruning cost, as layers are removed?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_costs.sql
--
-- One row per variant without repair and own task; replicated calibrations and selectors combined,
-- with their mean.
-- value, reach   the task's main metric, and half the width of its 95 % interval: over test
--                documents, and for means also over draws
-- n_draws        variants in the mean
-- Empty where no pruned variant was benchmarked on the task of its own calibration.
WITH repeated AS (SELECT DISTINCT model, selector FROM plans WHERE replicate_of IS NOT NULL)
SELECT model, calibration, task, metric, selector, removed, value, 1.959964 * stderr AS reach, n_samples,
    base_value, base_stderr, chance, 1 AS n_draws
FROM scores
WHERE own AND repair = 'none' AND healing = 'none'
    AND (model, calibration) NOT IN (SELECT (model, calibration) FROM calibrations WHERE replicate_of IS NOT NULL)
    AND (model, selector) NOT IN (SELECT (model, selector) FROM repeated)
UNION ALL
SELECT model, calibration, task, metric, selector, removed, value,
    sqrt((ci_high - value) ** 2 + (1.959964 * stderr) ** 2), n_samples, base_value, base_stderr,
    chance, n_draws
FROM score_means WHERE own AND repair = 'none' AND healing = 'none' AND value IS NOT NULL
ORDER BY model, calibration, task, selector, removed;
