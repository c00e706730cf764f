-- How did healing go?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_healing_went.sql
--
-- One row per healed variant and logged step. Losses are in nats per token.
-- chosen   whether the weights of this step were kept
-- Empty where no variant was healed.
SELECT * FROM training ORDER BY model, calibration, removed, healing, selector, repair, step;
