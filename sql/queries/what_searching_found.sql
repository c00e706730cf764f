-- What did searching whole sets find that greedy and one-shot removal do not?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_searching_found.sql
--
-- One row per search, size and strategy: the selector's own, and its rivals with the same objective and samples.
-- search_loss              mean loss on the samples that the set was chosen on: too low, as of any best of many
-- loss, stderr             the same on the n_samples samples held back from all of them
-- difference, ci_low, ci_high   loss minus that of the search, paired, with a 95 % interval: above 0 the search has won
-- evaluations              sets times samples that were asked for
-- Empty where no selector searches whole sets (strategy beam or evolutionary).
SELECT model, calibration, selector, removed, strategy, array_to_string(units, ' ') AS units, search_loss, loss,
    loss_stderr AS stderr, n_held_back AS n_samples, difference,
    difference - 1.96 * difference_stderr AS ci_low, difference + 1.96 * difference_stderr AS ci_high, evaluations,
    layer_tokens
FROM search_results
ORDER BY model, calibration, selector, removed, strategy IN ('iterative', 'one_shot'), strategy;
