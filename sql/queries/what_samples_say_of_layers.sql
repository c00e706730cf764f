-- What does each sample say about each layer?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_samples_say_of_layers.sql
--
-- One row per sample and removed layer of the base model; layer `none` is the base model itself. All
-- calibrations are shown, or only the one that variables `model` and `calibration` name (SET VARIABLE
-- calibration = 'recall').
-- Empty where no base model was swept; the figure of calibration sizes also needs one with at least 64 samples.
SELECT unit, sample, correct, correct_norm, nll, n_tokens, gold_margin, gold_margin_norm, cosine FROM sweeps
WHERE selector = 'base' AND removed = 0 AND model = coalesce(getvariable('model'), model)
    AND calibration = coalesce(getvariable('calibration'), calibration) AND unit NOT LIKE '%.%';
