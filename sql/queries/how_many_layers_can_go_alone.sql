-- How many layers cost no accuracy that the samples can show, one at a time?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_many_layers_can_go_alone.sql
--
-- One row per calibration.
-- free   layers whose 95 % interval of accuracy relevance reaches 0, of n_layers that were measured
-- Empty where no study of maps lists accuracy.
SELECT model, calibration, count(*) AS n_layers, count(*) FILTER (accuracy_low <= 0) AS free,
    max(accuracy_samples) AS n_samples
FROM relevance_wide WHERE component = 'layer' AND accuracy IS NOT NULL
GROUP BY ALL ORDER BY model, calibration;
