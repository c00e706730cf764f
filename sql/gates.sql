-- Whether variants reach what their studies demand.

CREATE OR REPLACE VIEW gate_results AS
WITH measured AS (
    SELECT g.*, s.metric, s.n_samples, s.kept_reason,
        coalesce(g.keep, g.floor) AS demanded,
        CASE WHEN g.keep IS NULL THEN s.value ELSE s.kept END AS reached,
        -- at least the error of an accuracy equal to the demanded one
        CASE WHEN g.keep IS NULL THEN root(greatest(s.stderr ** 2, g.floor * (1 - g.floor) / s.n_samples))
            WHEN isinf(s.value) THEN 0  -- an infinite perplexity certainly keeps nothing
            ELSE s.kept_stderr END AS reached_stderr,
        -- how much one more wrong document lowers the number
        CASE WHEN g.keep IS NOT NULL AND s.higher_is_better THEN 1 / (s.n_samples * s.base_value) ELSE 0 END AS step
    FROM gates AS g LEFT JOIN scores AS s USING (model, calibration, selector, removed, repair, healing, task)
)
SELECT * EXCLUDE (step, kept_reason),
    CASE
        WHEN coalesce(certain(reached - demanded, reached_stderr, step, 1), false) THEN 'passed'
        WHEN coalesce(certain(demanded - reached, reached_stderr, step, 1), false) THEN 'failed'
        ELSE 'not told apart'
    END AS result,
    CASE
        WHEN metric IS NULL THEN 'not measured'
        WHEN reached_stderr IS NULL THEN coalesce(kept_reason, 'no interval')
    END AS reason
FROM measured;
COMMENT ON VIEW gate_results IS 'One row per variant and gate of its study: whether it reaches what is demanded.';
COMMENT ON COLUMN gate_results.metric IS 'Main metric of the task; null where the task was not measured.';
COMMENT ON COLUMN gate_results.demanded IS 'What must be reached: keep or floor.';
COMMENT ON COLUMN gate_results.reached IS 'What was measured: kept of view scores where keep is set, else value.';
COMMENT ON COLUMN gate_results.reached_stderr IS 'Standard error of reached; for floor at least that of a share of right answers that is just what is demanded. Null where unknown.';
COMMENT ON COLUMN gate_results.result IS 'passed or failed where the 95 % interval of reached lies above or below demanded (see macro certain, for one number), else not told apart.';
COMMENT ON COLUMN gate_results.reason IS 'Why there is no interval: not measured, at chance, too few (see scores.kept_reason) or no interval; null where there is one.';

CREATE OR REPLACE VIEW gated_variants AS
SELECT model, calibration, selector, removed, repair, healing,
    CASE WHEN bool_or(result = 'failed') THEN 'failed' WHEN bool_and(result = 'passed') THEN 'passed'
        ELSE 'not told apart' END AS gates,
    string_agg(DISTINCT task, ', ' ORDER BY task) FILTER (result = 'failed') AS failed_gates,
    string_agg(DISTINCT task, ', ' ORDER BY task) FILTER (result = 'not told apart') AS untold_gates
FROM gate_results GROUP BY ALL;
COMMENT ON VIEW gated_variants IS 'One row per variant of a study with gates.';
COMMENT ON COLUMN gated_variants.gates IS 'failed if it fails one of its gates, passed if it passes all, else not told apart.';
COMMENT ON COLUMN gated_variants.failed_gates IS 'Tasks whose gates it fails, separated by `, `; null if there is none.';
COMMENT ON COLUMN gated_variants.untold_gates IS 'Tasks on which it cannot be told; null if there is none.';
