-- Which models were studied?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_models_were_studied.sql
--
-- One row per model, as in table models.
-- Empty where nothing was prepared.
FROM models ORDER BY model;
