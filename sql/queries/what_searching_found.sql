-- What did searching whole sets find?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_searching_found.sql
--
-- One row per search and size; the unpruned model has removed = 0.
-- search_loss              mean loss on the n_search samples that the set was chosen on: too low, as of any best of many
-- loss, stderr             mean loss on n_samples others, held back from the search; of a portfolio on the last half of its
--                          judge documents, corrected for the choice
-- search_loss_base, loss_base   the unpruned model's on the same samples; search_loss and loss are of different ones
-- repair                   the repair in place of the set, if it was chosen with one
-- evaluations              sets times samples that were asked for
-- Empty where no selector searches whole sets (strategies portfolio, pairwise, evolutionary).
SELECT model, calibration, selector, removed, array_to_string(units, ' ') AS units, search_loss, search_loss_base, n_search, loss,
    loss_stderr AS stderr, loss_base, n_held_back AS n_samples, evaluations, layer_tokens, repair
FROM search_results
LEFT JOIN (SELECT model, calibration, selector, removed, repair FROM searches WHERE stage = 'winner')
    USING (model, calibration, selector, removed)
ORDER BY model, calibration, selector, removed;
