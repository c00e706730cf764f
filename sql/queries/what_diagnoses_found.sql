-- What did diagnoses find, with nothing removed?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_diagnoses_found.sql
--
-- One row per diagnosis, measure and layer, with its 95 % interval and its control. The layer is null
-- for a measure of the whole model.
-- Empty where no study lists diagnoses.
SELECT model, calibration, diagnosis, kind, measure, layer, value, ci_low, ci_high, control, n_samples
FROM diagnoses WHERE point IS NULL AND value IS NOT NULL
ORDER BY model, calibration, diagnosis, measure, layer;
