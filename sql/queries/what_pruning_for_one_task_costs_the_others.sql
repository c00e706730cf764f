-- What does pruning for one task cost the others?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_for_one_task_costs_the_others.sql
--
-- One row per plan without repair and benchmark task; own marks the task the plan was made for.
-- change, change_stderr   against the base model, in the unit of metric, over n_samples test documents
-- kept, kept_stderr       share of the base model's number that is left, 1 = all; null where that is at chance
-- certain                 other test documents would show a change of the same sign too, of all tasks of the plan at once;
--                         null where the error is unknown
-- Empty where no variant without repair was benchmarked.
SELECT model, calibration, selector, removed, task, own, metric, base_value, value, stderr, change, change_stderr,
    kept, kept_stderr, certain(abs(change), change_stderr, 0, count(*) OVER plan) AS certain, n_samples
FROM scores
WHERE removed > 0 AND repair = 'none' AND healing = 'none'
WINDOW plan AS (PARTITION BY model, calibration, selector, removed)
ORDER BY model, calibration, selector, removed, own DESC, task;
