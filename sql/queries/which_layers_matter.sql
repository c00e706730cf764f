-- Which layers matter for each task?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_layers_matter.sql
--
-- One row per calibration and layer, most relevant first.
-- relevance         share of the accuracy above chance that is lost without the layer: 1 = all, 0 = none, negative = better
--                   without; null where the base model is at chance (see reason)
-- ci_low, ci_high   its 95 % interval over n_samples calibration samples
-- verdict           matters: the interval lies above 0; can go: it includes 0; better without: it lies below 0
-- Empty where no study of maps lists accuracy.
SELECT model, calibration, layer, accuracy AS relevance, accuracy_low AS ci_low, accuracy_high AS ci_high,
    accuracy_samples AS n_samples,
    CASE
        WHEN accuracy IS NULL THEN 'undefined'
        WHEN accuracy_low > 0 THEN 'matters'
        WHEN accuracy_high < 0 THEN 'better without'
        ELSE 'can go'
    END AS verdict,
    accuracy_reason AS reason
FROM relevance_wide
WHERE component = 'layer' AND (accuracy IS NOT NULL OR accuracy_reason IS NOT NULL)
ORDER BY model, calibration, accuracy DESC NULLS LAST, layer;
