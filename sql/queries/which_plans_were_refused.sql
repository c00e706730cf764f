-- Which plans were refused, and why?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_plans_were_refused.sql
--
-- One row per reason.
-- Empty where every plan could be made.
SELECT refused AS reason, string_agg(DISTINCT model || ' / ' || calibration || ' / ' || selector, ', ') AS plans
FROM plans WHERE refused IS NOT NULL GROUP BY ALL ORDER BY plans;
