-- What does a ranking of all layers cost, by the pass that measures it?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_a_metric_costs.sql
--
-- One row per pass over the base model and calibration, for whole layers.
-- pass       what was run; `measured`: its metrics in table relevance
-- seconds    wall time of its jobs, including their start
-- A job's wildcards are text such as `block=0, calibration=facts, model=m, removed=0,
-- selector=base/removal/layer`.
-- Empty where no sweep of a base model was timed in this run.
WITH swept AS (
    SELECT regexp_extract(wildcards, 'calibration=([^,]+)', 1) AS calibration,
        regexp_extract(wildcards, 'model=([^,]+)', 1) AS model,
        regexp_extract(wildcards, 'selector=base/(\w+)/layer', 1) AS pass, sum(seconds) AS seconds
    FROM jobs WHERE rule = 'sweep_units' GROUP BY ALL
)
SELECT s.model, s.pass, s.calibration, s.seconds, c.n_samples, c.n_tokens, m.n_layers,
    (SELECT list_sort(list(DISTINCT r.metric)) FROM relevance AS r WHERE r.model = s.model AND r.calibration = s.calibration
        AND r.selector = 'base' AND r.removed = 0) AS measured
FROM swept AS s
JOIN calibrations AS c ON c.model = s.model AND c.calibration = s.calibration
JOIN models AS m ON m.model = s.model
WHERE s.pass <> '' ORDER BY s.model, s.pass, s.calibration;
