-- Two numbers of a task beside each other: repaired and not, chosen and written, by its own plan and by another task's.

CREATE OR REPLACE VIEW choices_and_generation AS
SELECT
    w.model, w.calibration, w.selector, w.removed, w.repair, w.healing, w.task, w.own, w.n_samples,
    c.metric AS choice_metric, c.value AS choice, c.stderr AS choice_stderr,
    c.kept AS choice_kept, c.kept_stderr AS choice_kept_stderr,
    w.value AS written, w.stderr AS written_stderr, w.kept AS written_kept, w.kept_stderr AS written_kept_stderr
FROM against_base AS w
JOIN scores AS c USING (model, calibration, selector, removed, repair, healing, task)
WHERE w.metric = 'exact_match,written';
COMMENT ON VIEW choices_and_generation IS 'One row per variant and task whose questions it answered both by choosing and by writing.';
COMMENT ON COLUMN choices_and_generation.choice_metric IS 'Metric of the choices: the task''s main one.';
COMMENT ON COLUMN choices_and_generation.choice IS 'Share of questions answered rightly by choosing, 0 to 1.';
COMMENT ON COLUMN choices_and_generation.choice_stderr IS 'Standard error of choice.';
COMMENT ON COLUMN choices_and_generation.choice_kept IS 'choice / that of the base model; 1 = all.';
COMMENT ON COLUMN choices_and_generation.choice_kept_stderr IS 'Standard error of choice_kept, by the delta method.';
COMMENT ON COLUMN choices_and_generation.written IS 'Share of questions whose right choice the model wrote, 0 to 1.';
COMMENT ON COLUMN choices_and_generation.written_stderr IS 'Standard error of written.';
COMMENT ON COLUMN choices_and_generation.written_kept IS 'written / that of the base model; 1 = all.';
COMMENT ON COLUMN choices_and_generation.written_kept_stderr IS 'Standard error of written_kept, by the delta method.';

CREATE OR REPLACE VIEW repairs AS
WITH told AS MATERIALIZED (FROM scores),
paired AS (  -- perplexity = exp(nll): its documents are paired by their nll
    SELECT v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.task,
        if(v.metric = 'nll', 'perplexity', v.metric) AS metric,
        stddev_samp(v.value - p.value) / sqrt(count(*)) AS stderr
    FROM benchmark_samples AS v
    JOIN benchmark_samples AS p USING (model, calibration, selector, removed, task, metric, sample)
    WHERE v.removed > 0 AND p.repair = 'none' AND p.healing = 'none' AND v.metric <> 'perplexity'
        AND NOT (v.repair = 'none' AND v.healing = 'none')
    GROUP BY ALL
)
SELECT
    v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.task, v.metric, v.own, v.general_text,
    v.base_value, p.value AS pruned_value, v.value, v.stderr,
    CASE WHEN v.higher_is_better THEN v.value - p.value ELSE p.value - v.value END AS gain,
    CASE
        WHEN s.stderr IS NULL THEN sqrt(v.stderr ** 2 + p.stderr ** 2)
        WHEN v.metric = 'perplexity' THEN root(v.stderr ** 2 + p.stderr ** 2
            - 2 * perplexity_covariance(v.value, v.stderr, p.value, p.stderr, s.stderr))
        ELSE s.stderr
    END AS gain_stderr,
    CASE WHEN v.higher_is_better THEN v.base_value - p.value ELSE p.value - v.base_value END AS loss,
    p.change_stderr AS loss_stderr,
    v.n_samples
FROM told AS v
JOIN told AS p USING (model, calibration, selector, removed, task, metric)
LEFT JOIN paired AS s ON s.model = v.model AND s.calibration = v.calibration AND s.selector = v.selector
    AND s.removed = v.removed AND s.repair = v.repair AND s.healing = v.healing AND s.task = v.task
    AND s.metric = v.metric
WHERE v.removed > 0 AND p.repair = 'none' AND p.healing = 'none' AND NOT (v.repair = 'none' AND v.healing = 'none');
COMMENT ON VIEW repairs IS 'One row per repaired variant and task: what repair and healing gave back against the same plan without repair.';
COMMENT ON COLUMN repairs.metric IS 'Main metric of the task.';
COMMENT ON COLUMN repairs.pruned_value IS 'The number after pruning, before repair.';
COMMENT ON COLUMN repairs.value IS 'The number after repair.';
COMMENT ON COLUMN repairs.gain IS 'What repair gave back, in the unit of the metric; positive = better.';
COMMENT ON COLUMN repairs.gain_stderr IS 'Standard error of gain, paired over documents where they are known.';
COMMENT ON COLUMN repairs.loss IS 'What pruning had cost against the base model; positive = worse.';
COMMENT ON COLUMN repairs.loss_stderr IS 'Standard error of loss.';

CREATE OR REPLACE VIEW proxies AS
WITH bare AS MATERIALIZED (
    SELECT * FROM scores WHERE removed > 0 AND repair = 'none' AND healing = 'none' AND higher_is_better
),
targets AS (  -- the plan that was made for a task alone; of several calibrations the one that keeps most
    SELECT model, selector, removed, task, metric, calibration AS own_calibration, value AS own_value,
        stderr AS own_stderr, coalesce(chance, 0) AS chance
    FROM bare WHERE own AND (SELECT count(*) FROM own_tasks AS o
        WHERE o.model = bare.model AND o.calibration = bare.calibration) = 1
    QUALIFY row_number() OVER (PARTITION BY model, selector, removed, task ORDER BY value DESC, calibration) = 1
),
ratios AS MATERIALIZED (
    SELECT b.model, b.selector, b.removed, b.calibration, t.own_calibration, b.task, b.metric, b.value, t.own_value,
        t.chance, (b.value - t.chance) / (t.own_value - t.chance) AS ratio
    FROM bare AS b JOIN targets AS t USING (model, selector, removed, task)
    -- what guesses itself is no measure
    WHERE b.calibration <> t.own_calibration AND t.own_value > t.chance + 1.959964 * coalesce(t.own_stderr, 0)
),
spread AS (
    SELECT r.model, r.selector, r.removed, r.calibration, r.task,
        stddev_samp(v.value - r.ratio * o.value) / sqrt(count(*)) / any_value(r.own_value - r.chance) AS stderr,
        count(*) AS n_samples
    FROM ratios AS r
    JOIN benchmark_samples AS v ON v.model = r.model AND v.selector = r.selector AND v.removed = r.removed
        AND v.calibration = r.calibration AND v.task = r.task AND v.metric = r.metric
    JOIN benchmark_samples AS o ON o.model = r.model AND o.selector = r.selector AND o.removed = r.removed
        AND o.calibration = r.own_calibration AND o.task = r.task AND o.metric = r.metric AND o.sample = v.sample
    WHERE v.repair = 'none' AND v.healing = 'none' AND o.repair = 'none' AND o.healing = 'none'
    GROUP BY ALL
)
SELECT r.model, r.selector, r.removed, r.calibration, r.own_calibration, r.task, r.metric, r.value, r.own_value,
    r.chance, r.ratio AS kept_of_own, s.stderr AS kept_of_own_stderr, s.n_samples,
    CASE WHEN r.ratio >= 0.9 THEN 'good' WHEN r.ratio <= 0.1 THEN 'poor' ELSE 'between' END AS proxy,
    s.stderr IS NOT NULL AND least(abs(r.ratio - 0.9), abs(r.ratio - 0.1)) > 1.959964 * s.stderr AS sure
FROM ratios AS r LEFT JOIN spread AS s USING (model, selector, removed, calibration, task);
COMMENT ON VIEW proxies IS 'One row per plan without repair and task of another calibration: what it keeps of what the plan made for that task keeps, above chance [arXiv 2605.14075, E.5]. Tasks at chance under their own plan are left out.';
COMMENT ON COLUMN proxies.own_calibration IS 'Calibration drawn from the task alone, to whose plan by the same selector and of the same size the plan is compared.';
COMMENT ON COLUMN proxies.own_value IS 'What that plan reaches on the task.';
COMMENT ON COLUMN proxies.chance IS 'Accuracy of guessing on the task, 0 to 1; 0 where answers are generated.';
COMMENT ON COLUMN proxies.kept_of_own IS '(value - chance) / (own_value - chance): 1 = as good as the task''s own plan, 0 = guessing.';
COMMENT ON COLUMN proxies.kept_of_own_stderr IS 'Standard error of kept_of_own, paired over test documents, chance taken as known; null where they are not known.';
COMMENT ON COLUMN proxies.n_samples IS 'Test documents on which both plans were measured.';
COMMENT ON COLUMN proxies.proxy IS 'good: at least 0.9 of it is kept; poor: at most 0.1; between.';
COMMENT ON COLUMN proxies.sure IS 'Whether the 95 % interval of kept_of_own holds neither 0.9 nor 0.1.';
