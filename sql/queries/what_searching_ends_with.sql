-- What do searches of whole sets end with, beside greedy and one-shot removal?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_searching_ends_with.sql
--
-- One row per search, strategy and size.
-- search_loss          mean loss on the samples that the set was chosen on: it flatters the best of many
-- loss, loss_stderr    mean loss on n_held_back samples that no strategy saw
-- Empty where no selector searches whole sets (strategy beam or evolutionary).
SELECT model, calibration, selector, strategy, removed, search_loss, loss, loss_stderr, n_held_back
FROM search_results WHERE removed > 0 AND isfinite(loss)
ORDER BY model, calibration, selector, removed, strategy IN ('iterative', 'one_shot'), strategy;
