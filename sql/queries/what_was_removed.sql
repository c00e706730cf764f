-- What was removed, in which order?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_was_removed.sql
--
-- One row per plan and unit; a refused plan has one row that says why.
-- unit                              7, 7.mlp: removed; 7-9x2: layers 7 to 9 run twice; 7<>8: they
--                                   change places; 7=math:7: a layer of the donor math runs
-- position                          place in the order of removal, from 1
-- score                             relevance of the unit when it was chosen, in the unit of the
--                                   selector's metric
-- accuracy_before, accuracy_after   accuracy on the calibration before and after this removal; null
--                                   if the selector does not measure it
-- before_stderr, after_stderr       their binomial standard errors over n_before and n_after samples;
--                                   a search does not count the samples that it holds back
-- Empty where no study prunes (`selectors` and `removed`).
SELECT model, calibration, selector, removed, position, unit, score, accuracy_before, before_stderr, n_before,
    accuracy_after, after_stderr, n_after, refused
FROM removals
ORDER BY model, calibration, selector, removed, position;
