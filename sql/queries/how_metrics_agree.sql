-- How does each metric agree with what removals cost in accuracy?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_metrics_agree.sql
--
-- One row per model, kind of unit and metric. The highest rank correlation with accuracy relevance
-- within tasks comes first.
-- within, within_low, within_high   mean, lowest and highest rank correlation within single tasks,
--                                   as measured: a selector sees only one task
-- spearman, ci_low, ci_high      rank correlation over the units of all calibrations, with its 95 %
--                                interval
-- pearson                        linear correlation of the scores
-- misranked, surely, badly       share of units whose rank differs from that by accuracy, the lower
--                                end of its 95 % interval, and share of units whose rank differs by
--                                more than a quarter of the units
-- variance_ratio, wilcoxon_p     variance across calibrations of accuracy divided by that of the
--                                metric, and p of the test of no difference
-- Empty where no calibration has both accuracy and another metric defined: list them in a study of maps.
SELECT model, component, metric, any_value(within) AS within, any_value(within_low) AS within_low,
    any_value(within_high) AS within_high,
    any_value(value) FILTER (statistic = 'spearman') AS spearman,
    any_value(ci_low) FILTER (statistic = 'spearman') AS ci_low,
    any_value(ci_high) FILTER (statistic = 'spearman') AS ci_high,
    any_value(value) FILTER (statistic = 'pearson') AS pearson,
    any_value(value) FILTER (statistic = 'misranked') AS misranked,
    any_value(ci_low) FILTER (statistic = 'misranked') AS surely,
    any_value(value) FILTER (statistic = 'badly_misranked') AS badly,
    any_value(value) FILTER (statistic = 'variance_ratio') AS variance_ratio,
    any_value(p_value) FILTER (statistic = 'variance_ratio') AS wilcoxon_p,
    any_value(n_units) AS n_units, any_value(n_calibrations) AS n_calibrations, any_value(n_samples) AS n_samples
FROM agreements
LEFT JOIN (
    SELECT model, component, metric, avg(spearman) AS within, min(spearman) AS within_low, max(spearman) AS within_high
    FROM task_agreements GROUP BY ALL
) USING (model, component, metric)
WHERE statistic <> 'reliability' GROUP BY model, component, metric
ORDER BY model, component, within DESC NULLS LAST, spearman DESC NULLS LAST, metric;
