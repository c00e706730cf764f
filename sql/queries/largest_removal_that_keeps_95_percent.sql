-- What is the largest removal that keeps 95 % of a task?
--
--   duckdb results/lamina.duckdb -f sql/queries/largest_removal_that_keeps_95_percent.sql
--
-- One row per calibration: the variant with most layers removed whose share kept of the own tasks is at least 0.95, the
-- one that the report names. removed = 0 says that no variant does; the numbers are then those of the one that keeps most.
-- kept, kept_stderr    share of the base model's number that is left, over n_samples test documents; 1 = all
-- certain              other test documents would show at least 0.95 too, of all n_tried variants at once (docs/tables.md)
-- kept_above_chance    the same share counted from chance, which is stricter; null where chance is unknown
-- tried                largest removal that was tested
-- at_chance            the base model's interval reaches chance: there is nothing to keep, so no variant is named
-- Empty where no variant was tested on its calibration's own task.
WITH told AS (
    SELECT *, name AS calibration, max(removed) OVER (PARTITION BY model, name) AS tried
    FROM answered(0.95) WHERE question = 'task'
)
SELECT model, calibration, tasks, own_metric AS metric, if(kept_enough, removed, 0) AS removed, tried, selector, repair,
    healing, t.units, own_value AS value, own_stderr AS stderr, own_base AS base_value, kept, kept_stderr, certain,
    kept_above_chance, kept_above_chance_stderr, n_samples, n_tried, at_chance
FROM told AS t JOIN variants USING (model, calibration, selector, removed, repair, healing)
WHERE place = 1
ORDER BY model, calibration;
