-- What is the largest removal that keeps 95 % of a task?
--
--   duckdb results/lamina.duckdb -f sql/queries/largest_removal_that_keeps_95_percent.sql
--
-- One row per calibration and own task: the variant with most units removed whose share kept is at least 0.95; among
-- equals the one that keeps most. removed = 0 says that no variant does.
-- kept, kept_stderr    share of the base model's number that is left, over n_samples test documents; 1 = all
-- certain              kept - 1.96 kept_stderr is still at least 0.95: it would hold on other test documents too
-- kept_above_chance    the same share counted from chance, which is stricter; null where chance is unknown
-- tried                largest removal that was tested
-- at_chance            the base model's interval reaches chance: there is nothing to keep, so no variant is named
-- Empty where no variant was tested on its calibration's own task.
WITH own AS (
    SELECT *, coalesce(base_value - 1.96 * base_stderr <= chance, false) AS at_chance FROM scores WHERE own
),
chosen AS (
    SELECT *, row_number() OVER (
        PARTITION BY model, calibration, task ORDER BY removed DESC, kept DESC, recovery, healing, selector) AS place
    FROM own WHERE kept >= 0.95 AND NOT at_chance
),
asked AS (
    SELECT model, calibration, task, any_value(metric) AS metric, max(removed) AS tried,
        any_value(base_value) AS base_value, any_value(base_stderr) AS base_stderr, max(n_samples) AS n_samples,
        bool_or(at_chance) AS at_chance
    FROM own GROUP BY ALL
)
SELECT a.model, a.calibration, a.task, a.metric, coalesce(c.removed, 0) AS removed, a.tried,
    c.selector, c.recovery, c.healing, r.units,
    coalesce(c.value, a.base_value) AS value, coalesce(c.stderr, a.base_stderr) AS stderr, a.base_value, a.base_stderr,
    coalesce(c.kept, 1) AS kept, coalesce(c.kept_stderr, 0) AS kept_stderr,
    coalesce(c.kept - 1.96 * c.kept_stderr >= 0.95, NOT a.at_chance) AS certain, c.kept_above_chance, a.n_samples,
    a.at_chance
FROM asked AS a
LEFT JOIN (SELECT * FROM chosen WHERE place = 1) AS c USING (model, calibration, task)
LEFT JOIN removal_order AS r
    ON r.model = c.model AND r.calibration = c.calibration AND r.selector = c.selector AND r.removed = c.removed
ORDER BY a.model, a.calibration, a.task;
