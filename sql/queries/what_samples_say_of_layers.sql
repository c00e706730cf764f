-- What does each sample say of each layer?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_samples_say_of_layers.sql
--
-- One row per sample and removed layer of the base model, `none` being the whole model; of all calibrations, or of the
-- one that variables `model` and `calibration` name (SET VARIABLE calibration = 'recall').
-- Empty where no base model was swept; the figure of calibrations' sizes also needs 64 samples or more of one.
SELECT unit, sample, correct, correct_norm, nll, n_tokens, gold_margin, gold_margin_norm, cosine FROM sweeps
WHERE selector = 'base' AND removed = 0 AND model = coalesce(getvariable('model'), model)
    AND calibration = coalesce(getvariable('calibration'), calibration) AND unit NOT LIKE '%.%';
