-- What was removed, in which order?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_was_removed.sql
--
-- One row per plan and unit; a refused plan has one row that says why.
-- unit                              7.@math: layer 7 is not removed, the donor's takes its place
-- position                          place in the order of removal, from 1
-- score                             relevance for which the unit was picked, in the unit of the selector's metric
-- accuracy_before, accuracy_after   on the n_samples calibration samples, around this removal, with binomial standard
--                                   errors; null where the selector does not measure accuracy
-- Empty where no study prunes (`selectors` and `removed`).
SELECT p.model, p.calibration, p.selector, p.removed, p.position, p.unit, p.score,
    p.accuracy_before, sqrt(p.accuracy_before * (1 - p.accuracy_before) / c.n_samples) AS before_stderr,
    p.accuracy_after, sqrt(p.accuracy_after * (1 - p.accuracy_after) / c.n_samples) AS after_stderr,
    c.n_samples, p.refused
FROM plans AS p LEFT JOIN calibrations AS c USING (model, calibration)
ORDER BY p.model, p.calibration, p.selector, p.removed, p.position;
