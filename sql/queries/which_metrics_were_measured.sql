-- Which relevance metrics were measured?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_metrics_were_measured.sql
--
-- One row per metric.
-- Empty where no relevance was measured.
SELECT DISTINCT metric FROM relevance ORDER BY metric;
