-- How does relevance move as layers go?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_relevance_moves_as_layers_go.sql
--
-- One row per removal of an iterative selector and remaining unit, by the metric that the selector goes by: the one
-- whose scores its plan repeats at every step.
-- position, goes    number of the removal, and the unit that it takes
-- accuracy_before   of the model before it, on n_before calibration samples
-- Empty where no iterative selector removes two units or more.
WITH longest AS (
    SELECT * REPLACE (row_number() OVER plan AS position) FROM plans WHERE unit IS NOT NULL AND donor IS NULL
    WINDOW plan AS (PARTITION BY model, calibration, selector, removed ORDER BY position)
    QUALIFY removed = max(removed) OVER (PARTITION BY model, calibration, selector)
),
steps AS (
    SELECT l.model, l.calibration, l.selector, l.removed AS size, l.position, l.unit AS goes, l.accuracy_before,
        r.* EXCLUDE (model, calibration, selector),
        -- the model before a removal is measured beside every unit, until the last one leaves
        max(nullif(r.n_samples, 0)) OVER (PARTITION BY l.model, l.calibration, l.selector, l.position) AS n_before,
        r.unit = l.unit AND abs(r.score - l.score) <= 1e-9 * greatest(abs(l.score), 1) AS decides
    FROM longest AS l
    JOIN relevance AS r ON r.model = l.model AND r.calibration = l.calibration AND r.removed = l.position - 1
        AND (r.selector = l.selector OR (r.selector = 'base' AND NOT EXISTS (
            FROM relevance AS own WHERE own.model = l.model AND own.calibration = l.calibration
                AND own.selector = l.selector AND own.removed = 0)))
),
deciding AS (
    SELECT model, calibration, selector, metric FROM steps WHERE size > 1
    GROUP BY ALL HAVING count(DISTINCT position) FILTER (decides) = any_value(size)
),
own AS (SELECT model, calibration, selector, min(metric) AS metric FROM deciding GROUP BY ALL)
SELECT steps.* FROM steps JOIN own USING (model, calibration, selector, metric)
ORDER BY model, calibration, selector, position, layer;
