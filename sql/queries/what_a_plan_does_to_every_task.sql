-- What do plans made for one calibration do to every task?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_a_plan_does_to_every_task.sql
--
-- One row per plan without repair and task with an accuracy, at the largest size of each selector at which a task of
-- another calibration was tested.
-- own       whether the task is the calibration's own
-- change    accuracy less the base model's, with its standard error over n_samples test documents
-- Empty where no plan was benchmarked on a task other than its calibration's own.
WITH bare AS (
    SELECT * FROM scores WHERE removed > 0 AND repair = 'none' AND healing = 'none' AND higher_is_better
),
shown AS (SELECT model, selector, max(removed) AS removed FROM bare WHERE NOT own GROUP BY ALL)
SELECT model, selector, removed, calibration, task, own, change, change_stderr, n_samples
FROM bare JOIN shown USING (model, selector, removed) ORDER BY model, calibration, task, selector;
