-- How many samples does a repair need, and how large a ridge?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_many_samples_a_repair_needs.sql
--
-- One row per run of layers, number of samples fitted on, measure and ridge (point).
-- value   error of a linear map on unseen samples, as a share of the error with nothing in the place of the run
-- reach   half of its 95 % interval
-- Empty where no study lists a diagnosis of kind fit.
SELECT model, calibration, diagnosis, measure, layer, n_samples, point, value / control AS value,
    (ci_high - ci_low) / 2 / control AS reach
FROM diagnoses WHERE kind = 'fit' AND measure IN ('validated_error', 'unseen_error') AND control > 0
ORDER BY model, calibration, diagnosis, layer, n_samples, point;
