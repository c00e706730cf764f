-- Which runs of layers barely turn the stream?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_runs_barely_turn_the_stream.sql
--
-- One row per run of layers of the base model, from n_samples calibration samples.
-- layer, span   first layer of the run, and how many layers it has
-- angle         angle between the streams that enter and leave the run, at the last token, divided
--               by pi: 1 = opposite
-- Empty where no activations were captured in this run.
SELECT model, calibration, layer, span, angular_last AS angle, angular_last_stderr AS stderr, n_samples
FROM activations WHERE span > 0 AND angular_last IS NOT NULL ORDER BY model, calibration, span, layer;
