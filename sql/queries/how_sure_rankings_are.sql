-- How sure is the ranking of layers by accuracy?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_sure_rankings_are.sql
--
-- One row per calibration, the least sure first.
-- value   correlation with the ranking by other samples as many, with its 95 % interval
-- other   the metric, of those that agree with accuracy by `wanted` (a variable, 0.8), whose ranking is the surest
-- Empty where no calibration has accuracy defined on layers.
SELECT model, calibrations AS calibration, n_samples, n_units, value, ci_low, ci_high,
    (SELECT arg_max((metric, value), value) FROM agreements AS o
        WHERE o.statistic = 'reliability' AND o.component = 'layer' AND o.model = a.model
            AND o.calibrations = a.calibrations AND metric IN (SELECT metric FROM agreements AS k
                WHERE k.model = a.model AND k.statistic = 'spearman' AND k.component = 'layer'
                    AND k.value >= coalesce(getvariable('wanted'), 0.8))) AS other
FROM agreements AS a WHERE statistic = 'reliability' AND component = 'layer' AND metric = 'accuracy'
ORDER BY model, value;
