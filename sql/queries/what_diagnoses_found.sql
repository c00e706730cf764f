-- What did diagnoses find of whole models?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_diagnoses_found.sql
--
-- One row per diagnosis and measure that is of no single layer, with its 95 % interval and its control.
-- Empty where no diagnosis says something of a whole model.
FROM diagnoses WHERE layer IS NULL AND point IS NULL AND value IS NOT NULL
ORDER BY model, calibration, diagnosis, measure;
