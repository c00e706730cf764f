-- How reliable is the ranking of layers by accuracy?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_sure_rankings_are.sql
--
-- One row per calibration, the least reliable first.
-- value                  reliability: expected rank correlation with a ranking from as many other
--                        samples, with its 95 % interval
-- other, other_value     the metric with the most reliable ranking, and its reliability; only metrics
--                        whose rank correlation with accuracy on this task is at least `wanted` (a
--                        variable, 0.8)
-- other_spearman, other_low, other_high   that rank correlation, with its 95 % interval (table
--                                         task_agreements)
-- Empty where no calibration has accuracy defined on layers.
WITH sure AS (
    SELECT model, calibrations AS calibration, metric, value, ci_low, ci_high, n_samples, n_units
    FROM agreements WHERE statistic = 'reliability' AND component = 'layer'
),
others AS (
    SELECT model, calibration, metric AS other, s.value AS other_value, t.spearman AS other_spearman,
        t.ci_low AS other_low, t.ci_high AS other_high
    FROM sure AS s JOIN task_agreements AS t USING (model, calibration, metric)
    WHERE t.component = 'layer' AND t.spearman >= coalesce(getvariable('wanted'), 0.8)
    QUALIFY row_number() OVER (PARTITION BY model, calibration ORDER BY s.value DESC, metric) = 1
)
SELECT model, calibration, n_samples, n_units, value, ci_low, ci_high, other, other_value, other_spearman, other_low,
    other_high
FROM sure LEFT JOIN others USING (model, calibration)
WHERE metric = 'accuracy'
ORDER BY model, value;
