-- Which repairs hurt on documents that they were not fitted on?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_repairs_hurt.sql
--
-- One row per plan and repair whose loss there is significantly higher than that of the plan without
-- repair. View `answers` leaves these out.
-- loss_bare, loss_repaired    nats per token, over n_loss held-out documents of the variant's own
--                             calibration
-- loss_stderr                 standard error of their paired difference
-- Empty where no repair did.
SELECT DISTINCT model, calibration, selector, removed, repair, loss_bare, loss_repaired, loss_stderr, n_loss
FROM patches WHERE hurts ORDER BY ALL;
