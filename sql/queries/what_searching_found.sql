-- What did searches over sets of units find?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_searching_found.sql
--
-- One row per search and size. The base model has strategy none.
-- search_loss              mean loss on the n_search samples that the set was chosen on; it is too
--                          low, because the set is the best of many
-- loss, stderr             mean loss on n_samples samples held back from the search; for a portfolio,
--                          on the last half of its judge documents, corrected for the choice
-- change, change_stderr    difference of loss from the base model's, paired; null for a portfolio
-- search_loss_base, loss_base   losses of the base model on the same samples; search_loss and loss
--                               have different samples
-- repair                   the repair with which the set was chosen, if any
-- evaluations              sets times samples that the search evaluated
-- Empty where no selector searches over sets.
SELECT model, calibration, selector, strategy, removed, array_to_string(units, ' ') AS units, search_loss, search_loss_base, n_search, loss,
    loss_stderr AS stderr, loss_base, change, change_stderr, n_held_back AS n_samples, evaluations, layer_tokens, repair
FROM search_results
LEFT JOIN (SELECT model, calibration, selector, strategy, removed, repair FROM searches WHERE stage = 'winner')
    USING (model, calibration, selector, strategy, removed)
ORDER BY model, calibration, selector, strategy <> 'none', removed;
