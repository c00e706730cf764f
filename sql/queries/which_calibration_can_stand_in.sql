-- Which calibration can stand in for which?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_calibration_can_stand_in.sql
--
-- One row per plan without repair and task of another calibration, at the largest size of each selector.
-- kept_of_own   share of what the task's own plan keeps, above chance; stderr over n_samples test documents
-- proxy, sure   good, poor or between (0.9, 0.1), and whether the 95 % interval says so too
-- Empty where no plan was benchmarked on a task that another calibration has a plan for.
SELECT * FROM proxies QUALIFY removed = max(removed) OVER (PARTITION BY model, selector)
ORDER BY model, selector, calibration, own_calibration;
