-- What does pruning for one task cost the others?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_for_one_task_costs_the_others.sql
--
-- One row per plan without repair and benchmark task; own marks the task the plan was made for.
-- change, change_stderr   against the base model, in the unit of metric, over n_samples test documents
-- kept, kept_stderr       share of the base model's number that is left, 1 = all
-- certain                 change is more than 1.96 standard errors from 0
-- Empty where no variant without repair was benchmarked.
SELECT model, calibration, selector, removed, task, own, metric, base_value, value, stderr, change, change_stderr,
    kept, kept_stderr, abs(change) > 1.96 * change_stderr AS certain, n_samples
FROM scores
WHERE removed > 0 AND recovery = 'none' AND healing = 'none'
ORDER BY model, calibration, selector, removed, own DESC, task;
