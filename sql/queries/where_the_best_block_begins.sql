-- Where does the best block of every size begin?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_the_best_block_begins.sql
--
-- One row per run of layers of the base model, n_samples calibration samples each.
-- angle    as in which_runs_barely_turn_the_stream; stderr is of the angle, not of its place between two others
-- within   place of the angle among those of runs of as many layers: 0 = the least, 1 = the largest
-- Empty where no activations were captured in this run.
WITH angles AS (
    SELECT model, calibration, layer, span, angular_last AS angle, angular_last_stderr AS stderr, n_samples
    FROM activations WHERE span > 0 AND angular_last IS NOT NULL
)
SELECT *, coalesce((angle - min(angle) OVER same) / nullif(max(angle) OVER same - min(angle) OVER same, 0), 0) AS within
FROM angles WINDOW same AS (PARTITION BY model, calibration, span) ORDER BY model, calibration, span, layer;
