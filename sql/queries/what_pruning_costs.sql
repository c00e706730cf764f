-- What does pruning cost, as layers are removed?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_costs.sql
--
-- One row per unhealed variant and own task, bare or with the repair with which its selector chose
-- the plan. Replicated calibrations and selectors are combined into their mean.
-- repair         repair of the variant; `as chosen` for means over plans chosen with a repair
-- as_chosen      whether the plan was chosen with this repair
-- value, reach   the task's main metric, and half the width of its 95 % interval over test documents;
--                for means it is also over draws
-- n_draws        number of variants in the mean
-- Empty where no pruned variant was benchmarked on the task of its own calibration.
WITH repeated AS (SELECT DISTINCT model, selector FROM plans WHERE replicate_of IS NOT NULL),
chosen AS (SELECT model, calibration, selector, removed, chosen_repair FROM removal_order),
repaired_means AS (
    SELECT DISTINCT model, calibration, selector, removed, task FROM score_means WHERE repair = 'as chosen'
)
SELECT model, calibration, task, metric, selector, removed, repair, repair = coalesce(chosen_repair, 'none') AS as_chosen,
    value, 1.959964 * stderr AS reach, n_samples, base_value, base_stderr, chance, 1 AS n_draws
FROM scores LEFT JOIN chosen USING (model, calibration, selector, removed)
WHERE own AND healing = 'none' AND selector <> 'none' AND repair IN ('none', chosen_repair)
    AND (model, calibration) NOT IN (SELECT (model, calibration) FROM calibrations WHERE replicate_of IS NOT NULL)
    AND (model, selector) NOT IN (SELECT (model, selector) FROM repeated)
UNION ALL
SELECT model, calibration, task, metric, selector, removed, repair,
    repair = 'as chosen' OR (model, calibration, selector, removed, task) NOT IN (FROM repaired_means),
    value, sqrt((ci_high - value) ** 2 + (1.959964 * stderr) ** 2), n_samples, base_value, base_stderr,
    chance, n_draws
FROM score_means WHERE own AND repair IN ('none', 'as chosen') AND healing = 'none' AND value IS NOT NULL
ORDER BY model, calibration, task, selector, removed, as_chosen DESC;
