-- How much does what variants keep hang on which samples, or which seed, was drawn?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_far_variants_vary_between_draws.sql
--
-- One row per selector and calibration of which draws were made.
-- spread, most   standard deviation of a draw of the share kept of the own task, in points: median of n variants, largest
-- Empty where no calibration and no selector is replicated.
SELECT model, calibration, selector, max(n_draws) AS n_draws, 100 * median(kept_spread) AS spread,
    100 * max(kept_spread) AS most, count(*) AS n
FROM score_means WHERE own AND kept_spread IS NOT NULL GROUP BY ALL ORDER BY model, calibration, selector;
