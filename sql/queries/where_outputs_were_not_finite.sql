-- Without which units were the outputs not finite?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_outputs_were_not_finite.sql
--
-- One row per unit and calibration.
-- most   number of samples on which outputs were not finite; these count as wrong
-- Empty where all outputs were finite.
SELECT model, calibration, unit, max(n_not_finite) AS most FROM relevance
WHERE n_not_finite > 0 GROUP BY ALL ORDER BY model, calibration, most DESC, unit;
