-- What does pruning for one task cost the others?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_for_one_task_costs_the_others.sql
--
-- One row per plan and benchmark task. The variant has the repair with which the plan was chosen if
-- that was measured on the task, else none. own marks the task that the plan was made for.
-- repair, chosen_repair   repair of the variant, and repair with which the plan was chosen
-- value, stderr           result on n_samples test documents (a perplexity where metric says so: lower
--                         is better)
-- change, change_stderr   difference from the base model, in the unit of metric, paired over the
--                         documents where paired is true
-- kept, kept_stderr       share of the base model's score that is left, 1 = all; null where the
--                         base model is at chance
-- kept_reason             why kept or its error is null: at chance, or too few documents
-- certain                 whether other test documents would show a change of the same sign too,
--                         for all tasks of the plan at once; null where the error is unknown
-- chance                  accuracy of guessing, where known
-- Empty where no variant without healing was benchmarked.
WITH taken AS (
    SELECT s.*, coalesce(chosen_repair, 'none') AS chosen_repair
    FROM scores AS s
    LEFT JOIN (SELECT model, calibration, selector, removed, chosen_repair FROM removal_order)
        USING (model, calibration, selector, removed)
    WHERE s.selector <> 'none' AND healing = 'none' AND repair IN ('none', coalesce(chosen_repair, 'none'))
    QUALIFY row_number() OVER (PARTITION BY model, calibration, selector, removed, task
        ORDER BY repair = coalesce(chosen_repair, 'none') DESC) = 1
)
SELECT model, calibration, selector, removed, repair, chosen_repair, task, own, metric, higher_is_better, base_value, base_stderr, value, stderr,
    change, change_stderr, paired, kept, kept_stderr, kept_reason, chance,
    certain(abs(change), change_stderr, abs(change) / n_samples, count(*) OVER plan) AS certain, n_samples
FROM taken
WINDOW plan AS (PARTITION BY model, calibration, selector, removed)
ORDER BY model, calibration, selector, removed, own DESC, task;
