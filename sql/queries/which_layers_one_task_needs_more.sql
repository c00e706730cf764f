-- Which layers does one task need more than another?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_layers_one_task_needs_more.sql
--
-- One row per pair of calibrations, with n_samples and n_rival samples, and whole layer of the base
-- model.
-- difference   accuracy relevance for `calibration` minus that for `rival`, with its 95 % interval
-- sure         whether it is significant, corrected for all layers and pairs (q_value)
-- is_double    whether each of the two tasks needs some layer significantly more than the other
-- Empty where no two tasks were swept on which the model is above chance.
SELECT model, calibration, rival, layer, difference, ci_low, ci_high, q_value, null_low, null_high, sure,
    coalesce(max(difference) FILTER (sure) OVER pair > 0 AND min(difference) FILTER (sure) OVER pair < 0, false)
        AS is_double,
    n_samples, n_rival
FROM dissociations WHERE component = 'layer'
WINDOW pair AS (PARTITION BY model, calibration, rival)
ORDER BY model, calibration, rival, layer;
