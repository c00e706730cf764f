-- Which layers matter for each task?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_layers_matter.sql
--
-- One row per unit of the base model and calibration, whole layers first, the most relevant first.
-- accuracy   share of the accuracy above chance that is lost without the unit: 1 = all, 0 = none,
--            negative = better without; null where the base model is at chance (see
--            accuracy_reason)
-- verdict    matters: the interval lies above 0; can go: it includes 0; better without: it lies
--            below 0
-- cosine     how far the unit turns the stream: 1 - cos
-- n_draws    number of draws in a mean over replicated calibrations; null for a single calibration
-- draw_of    label of the group to which a replicated calibration belongs
-- *_low, *_high, *_samples, *_spread   95 % interval, number of samples, standard deviation from
--                                      draw to draw
-- Empty where no relevance was measured: no sweep of a base model is part of this run.
WITH measured AS (
    SELECT w.*, NULL AS n_draws, replicate_of AS draw_of, NULL AS accuracy_spread, NULL AS cosine_spread
    FROM relevance_wide AS w LEFT JOIN calibrations USING (model, calibration)
    UNION ALL BY NAME
    SELECT model, calibration, component, layer, unit, max(n_draws) AS n_draws,
        max(score) FILTER (metric = 'accuracy') AS accuracy, max(score) FILTER (metric = 'cosine') AS cosine,
        max(ci_low) FILTER (metric = 'accuracy') AS accuracy_low, max(ci_low) FILTER (metric = 'cosine') AS cosine_low,
        max(ci_high) FILTER (metric = 'accuracy') AS accuracy_high, max(ci_high) FILTER (metric = 'cosine') AS cosine_high,
        max(reason) FILTER (metric = 'accuracy') AS accuracy_reason,
        max(n_samples) FILTER (metric = 'accuracy') AS accuracy_samples,
        max(n_samples) FILTER (metric = 'cosine') AS cosine_samples,
        max(spread) FILTER (metric = 'accuracy') AS accuracy_spread,
        max(spread) FILTER (metric = 'cosine') AS cosine_spread
    FROM relevance_means GROUP BY ALL
)
SELECT model, calibration, component, layer, accuracy, accuracy_low, accuracy_high,
    CASE
        WHEN accuracy IS NULL OR accuracy_low IS NULL THEN 'undefined'
        WHEN accuracy_low > 0 THEN 'matters'
        WHEN accuracy_high < 0 THEN 'better without'
        ELSE 'can go'
    END AS verdict,
    accuracy_samples, cosine, cosine_low, cosine_high, cosine_samples, accuracy_reason, n_draws, draw_of,
    accuracy_spread, cosine_spread
FROM measured WHERE accuracy IS NOT NULL OR accuracy_reason IS NOT NULL OR cosine IS NOT NULL
ORDER BY model, component <> 'layer', component, calibration, accuracy DESC NULLS LAST, layer;
