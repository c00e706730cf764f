-- What is each unit of the base model worth, by accuracy and by cosine?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_each_layer_is_worth.sql
--
-- One row per unit and calibration; replicated calibrations as one, their mean over n_draws and the standard deviation
-- of a draw (spread).
-- Empty where no relevance was measured: no sweep of a base model is part of this run.
FROM (
    SELECT model, component, calibration, layer, accuracy, accuracy_low, accuracy_high, accuracy_reason, cosine,
        cosine_low, cosine_high, accuracy_samples, cosine_samples, 1 AS n_draws,
        NULL AS accuracy_spread, NULL AS cosine_spread
    FROM relevance_wide
    WHERE (model, calibration) NOT IN (SELECT (model, calibration) FROM calibrations WHERE replicate_of IS NOT NULL)
    UNION ALL
    SELECT model, component, calibration, layer, max(score) FILTER (metric = 'accuracy'),
        max(ci_low) FILTER (metric = 'accuracy'), max(ci_high) FILTER (metric = 'accuracy'),
        max(reason) FILTER (metric = 'accuracy'), max(score) FILTER (metric = 'cosine'),
        max(ci_low) FILTER (metric = 'cosine'), max(ci_high) FILTER (metric = 'cosine'),
        max(n_samples) FILTER (metric = 'accuracy'), max(n_samples) FILTER (metric = 'cosine'), max(n_draws),
        max(spread) FILTER (metric = 'accuracy'), max(spread) FILTER (metric = 'cosine')
    FROM relevance_means GROUP BY ALL
)
WHERE accuracy IS NOT NULL OR accuracy_reason IS NOT NULL OR cosine IS NOT NULL
ORDER BY model, component, calibration, layer;
