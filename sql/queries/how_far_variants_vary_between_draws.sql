-- How much does what variants keep depend on which samples, or which seed, were drawn?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_far_variants_vary_between_draws.sql
--
-- One row per selector and calibration with several draws.
-- spread, most   standard deviation between draws, in points, of the share kept of the own task:
--                its median over n variants, and the largest
-- Empty where no calibration and no selector is replicated.
SELECT model, calibration, selector, max(n_draws) AS n_draws, 100 * median(kept_spread) AS spread,
    100 * max(kept_spread) AS most, count(*) AS n
FROM score_means WHERE own AND kept_spread IS NOT NULL GROUP BY ALL ORDER BY model, calibration, selector;
