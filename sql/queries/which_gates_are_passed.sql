-- Which variants reach what their study demands?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_gates_are_passed.sql
--
-- One row per variant and gate. A variant without repair comes before the repaired ones.
-- demanded, reached    for keep, shares of the base model's score; for floor, values of the metric
-- result               passed or failed, or not told apart if the 95 % interval of reached includes
--                      demanded or is unknown
-- Empty where no study has gates.
SELECT handle, r.*
FROM gate_results AS r LEFT JOIN handles USING (model, calibration, selector, removed, repair, healing)
ORDER BY model, calibration, selector, removed, healing <> 'none', repair <> 'none', repair, healing, task, demanded;
