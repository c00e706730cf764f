-- How does relevance change as layers are removed one after the other?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_relevance_changes_as_layers_go.sql
--
-- One row per step and remaining unit of a selector that measures again after each removal, up to its
-- largest size [arXiv 2605.14075, figures 14 to 16].
-- step       size removed so far, in units or in layers; 0 is the base model
-- metric     metric of the scores in the selector's plan; accuracy if the plan combines several
--            calibrations
-- score      relevance in the unit of the metric, with its 95 % interval, over n_samples samples
-- chosen     whether the unit was removed at this step
-- accuracy   accuracy of the model at this step on n_accuracy calibration samples, with its
--            standard error; null if the selector does not measure it
-- Empty where no plan of two units or more comes from a selector that measures after each removal.
WITH stepped AS (
    SELECT DISTINCT model, calibration, selector, component FROM relevance WHERE selector <> 'base' AND removed > 0
),
swept AS (  -- a selector with a repair in the loop measures its own first step
    SELECT s.model, s.calibration, s.selector, s.component, r.removed AS step, r.metric, r.unit, r.layer,
        r.score, r.ci_low, r.ci_high, r.n_samples
    FROM stepped AS s JOIN relevance AS r
        ON r.model = s.model AND r.calibration = s.calibration AND r.component = s.component
        AND (r.selector = s.selector OR (r.selector = 'base' AND r.removed = 0))
    QUALIFY row_number() OVER (
        PARTITION BY s.model, s.calibration, s.selector, r.removed, r.metric, r.unit ORDER BY r.selector = 'base') = 1
),
last_steps AS (SELECT model, calibration, selector, unit, max(step) AS step FROM swept GROUP BY ALL),
planned AS (
    SELECT p.model, p.calibration, p.selector, p.unit, step, position, score, accuracy_before
    FROM plans AS p JOIN last_steps USING (model, calibration, selector, unit)
    WHERE edit IS NULL
    QUALIFY removed = max(removed) OVER (PARTITION BY p.model, p.calibration, p.selector)
),
metrics AS (  -- a plan and the table sum a score in different orders
    SELECT s.model, s.calibration, s.selector, s.metric
    FROM swept AS s JOIN planned AS p USING (model, calibration, selector, unit, step)
    GROUP BY s.model, s.calibration, s.selector, s.metric
    QUALIFY row_number() OVER (PARTITION BY s.model, s.calibration, s.selector
        ORDER BY count_if(abs(s.score - p.score) <= 1e-9 * greatest(1, abs(p.score))) DESC, s.metric <> 'accuracy', s.metric) = 1
),
steps AS (SELECT model, calibration, selector, step, max(n_samples) AS n FROM swept GROUP BY ALL),
accuracies AS (
    SELECT model, calibration, selector, step, arg_min(accuracy_before, position) AS accuracy, any_value(n) AS n_accuracy
    FROM planned JOIN steps USING (model, calibration, selector, step) GROUP BY ALL
)
SELECT s.model, s.calibration, s.selector, s.component, s.metric, s.step, s.layer, s.unit, s.score, s.ci_low, s.ci_high,
    s.n_samples, p.unit IS NOT NULL AS chosen, a.accuracy, share_of_answers_stderr(a.accuracy, a.n_accuracy) AS accuracy_stderr,
    CASE WHEN a.accuracy IS NOT NULL THEN a.n_accuracy END AS n_accuracy
FROM swept AS s JOIN metrics USING (model, calibration, selector, metric)
LEFT JOIN planned AS p USING (model, calibration, selector, unit, step)
LEFT JOIN accuracies AS a USING (model, calibration, selector, step)
ORDER BY s.model, s.component <> 'layer', s.component, s.metric <> 'accuracy', s.metric, s.selector, s.calibration, s.step,
    s.layer;
