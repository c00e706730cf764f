-- What does healing keep as layers go?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_healing_keeps.sql
--
-- One row per variant without a repair and task, of the selectors and calibrations of which something was healed;
-- loss over log V stands beside a task's own metric.
-- share   of the layers removed
-- Empty where no variant was healed without a repair before it.
WITH shown AS (
    SELECT * FROM scores AS s WHERE metric <> 'perplexity' AND (own OR NOT EXISTS (  -- of text, which has none, all
        FROM own_tasks AS o WHERE o.model = s.model AND o.calibration = s.calibration AND o.chance IS NOT NULL))
    UNION ALL SELECT * FROM against_base WHERE metric = 'nll_per_log_vocabulary'
),
healed AS (SELECT DISTINCT model, calibration, selector FROM shown WHERE healing <> 'none' AND repair = 'none')
SELECT s.*, s.removed / m.n_layers AS share FROM shown AS s
JOIN models AS m ON m.model = s.model
JOIN healed AS h ON h.model = s.model AND h.calibration = s.calibration AND h.selector = s.selector
WHERE s.repair = 'none' AND s.removed > 0
ORDER BY s.model, s.calibration, s.metric = 'nll_per_log_vocabulary', s.task, s.selector, s.healing, s.removed;
