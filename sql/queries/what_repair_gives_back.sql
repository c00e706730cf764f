-- What does each repair give back on the own task?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_repair_gives_back.sql
--
-- One row per variant and own task, at the largest size that was healed, else the largest that was patched.
-- refused   selectors that have no plan for the calibration
-- Empty where no variant with a repair or a healing was benchmarked on its own task.
WITH shown AS (
    SELECT model, calibration,
        coalesce(max(removed) FILTER (healing <> 'none'), max(removed) FILTER (repair <> 'none')) AS removed
    FROM scores WHERE own GROUP BY ALL
)
SELECT model, calibration, task, metric, selector, removed, repair, healing, value, stderr, n_samples, base_value,
    base_stderr, chance, (SELECT string_agg(DISTINCT p.selector, ',' ORDER BY p.selector) FROM plans AS p
        WHERE p.refused IS NOT NULL AND p.model = scores.model AND p.calibration = scores.calibration) AS refused
FROM scores JOIN shown USING (model, calibration, removed) WHERE own
ORDER BY model, calibration, task, selector, healing <> 'none', repair <> 'none', repair, healing;
