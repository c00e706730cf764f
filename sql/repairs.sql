-- Comparisons of two numbers of a task: with and without repair, choices and written answers.

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
paired AS (  -- perplexity = exp(nll), so its documents are paired by their nll
    SELECT v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.task,
        CASE WHEN v.metric = 'nll' THEN 'perplexity' ELSE v.metric END AS metric,
        paired_stderr(v.value, p.value, v.metric) AS stderr
    FROM benchmark_samples AS v
    JOIN benchmark_samples AS p USING (model, calibration, selector, removed, task, metric, sample)
    WHERE v.selector <> 'none' AND p.repair = 'none' AND p.healing = 'none' AND v.metric <> 'perplexity'
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
WHERE v.selector <> 'none' AND p.repair = 'none' AND p.healing = 'none' AND NOT (v.repair = 'none' AND v.healing = 'none');
COMMENT ON VIEW repairs IS 'One row per repaired variant and task: what repair and healing recovered compared with the same plan without repair.';
COMMENT ON COLUMN repairs.metric IS 'Main metric of the task.';
COMMENT ON COLUMN repairs.pruned_value IS 'The number after pruning, before repair.';
COMMENT ON COLUMN repairs.value IS 'The number after repair.';
COMMENT ON COLUMN repairs.gain IS 'What the repair recovered, in the unit of the metric; positive = better.';
COMMENT ON COLUMN repairs.gain_stderr IS 'Standard error of gain, paired over documents where they are known.';
COMMENT ON COLUMN repairs.loss IS 'What pruning had cost against the base model; positive = worse.';
COMMENT ON COLUMN repairs.loss_stderr IS 'Standard error of loss.';
