-- Of which calibrations do we know what every sample says of every layer?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_rankings_can_be_drawn_anew.sql
--
-- One row per calibration and metric that was measured on the base model's layers.
-- Empty where no study of maps has a calibration of 64 samples or more.
SELECT DISTINCT model, calibration, metric, chance_accuracy, choice_score FROM relevance
JOIN calibrations USING (model, calibration)
WHERE selector = 'base' AND removed = 0 AND component = 'layer' AND score IS NOT NULL
ORDER BY model, calibration, metric;
