-- On which task does each metric order units as accuracy does?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_metrics_agree_on_each_task.sql
--
-- One row per model, kind of unit, metric and calibration.
-- spearman          rank correlation with accuracy relevance, over n_units units of the base model
--                   and from n_samples samples
-- ci_low, ci_high   its 95 % interval, as if the units were a sample of many units [Bonett and
--                   Wright 2000]
-- Empty where no calibration has both accuracy and another metric defined: list them in a study of maps.
SELECT t.model, t.component, metric, t.calibration, spearman, ci_low, ci_high, n_units, n_samples
FROM task_agreements AS t
JOIN (
    SELECT model, component, calibration, max(n_samples) AS n_samples
    FROM relevance WHERE selector = 'base' AND removed = 0 AND metric = 'accuracy' GROUP BY ALL
) USING (model, component, calibration)
ORDER BY model, component <> 'layer', component, avg(spearman) OVER (PARTITION BY model, component, metric) DESC, metric,
    calibration;
