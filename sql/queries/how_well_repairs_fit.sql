-- How much of each removed run does a repair make up for?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_well_repairs_fit.sql
--
-- One row per run and repair. Plans that remove the same run have the same fit, unless it is fitted after other
-- patches: then their mean is shown.
-- before, fitted, unseen   relative error of the stream behind the run: without a repair, with it on the n_samples
--                          samples that it was fitted on, and on n_heldout unseen ones (with its standard error)
-- Empty where no repair was fitted.
SELECT model, calibration, "start", "end", repair, avg(heldout_error_before) AS before, avg(fit_error) AS fitted,
    avg(heldout_error) AS unseen, avg(heldout_error_stderr) AS stderr, max(n_samples) AS n_samples,
    max(n_heldout) AS n_heldout
FROM patches WHERE n_samples IS NOT NULL GROUP BY ALL ORDER BY ALL;
