-- Which calibrations were used?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_calibrations_were_used.sql
--
-- One row per model and calibration, as in table calibrations.
-- Empty where no study has a calibration.
FROM calibrations ORDER BY model, calibration;
