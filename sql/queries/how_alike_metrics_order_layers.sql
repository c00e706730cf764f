-- How alike do accuracy and the other metrics order the layers?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_alike_metrics_order_layers.sql
--
-- One row per model.
-- told   rank correlation of the true scores with those by accuracy, with 95 % intervals, by metric
-- Empty where no calibration has both accuracy and another metric defined.
SELECT model, max(n_calibrations) AS tasks,
    string_agg(format('{} {:.2f} [{:.2f}, {:.2f}]', metric, value, ci_low, ci_high), '; ' ORDER BY value DESC) AS told
FROM agreements WHERE statistic = 'spearman' AND component = 'layer' AND isfinite(value)
GROUP BY model ORDER BY model;
