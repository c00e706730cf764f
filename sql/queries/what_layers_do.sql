-- What do layers do, with nothing removed?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_layers_do.sql
--
-- One row per diagnosis of kind void, probe or patching, measure and layer, with its 95 % interval and its control.
-- Empty where no study lists a diagnosis of kind void, probe or patching.
SELECT model, calibration, diagnosis, kind, measure, layer, value, ci_low, ci_high, control, n_samples
FROM diagnoses WHERE kind IN ('void', 'probe', 'patching') AND layer IS NOT NULL
ORDER BY model, list_position(['void', 'probe', 'patching'], kind), diagnosis, calibration, layer;
