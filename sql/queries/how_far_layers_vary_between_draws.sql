-- How much does the relevance of layers hang on which samples were drawn?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_far_layers_vary_between_draws.sql
--
-- One row per group of replicated calibrations.
-- spread, most, unit   standard deviation of a draw of accuracy relevance: median of n layers, the largest, and whose
-- Empty where no calibration is replicated.
SELECT model, calibration, max(n_draws) AS n_draws, median(spread) AS spread, max(spread) AS most,
    arg_max(unit, spread) AS unit, count(*) AS n
FROM relevance_means WHERE metric = 'accuracy' AND component = 'layer' AND spread IS NOT NULL
GROUP BY ALL ORDER BY model, calibration;
