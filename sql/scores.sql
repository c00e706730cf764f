-- What a variant keeps of the base model's scores: on each task, as means, and on general text.

CREATE OR REPLACE VIEW own_tasks AS
WITH sources AS (
    SELECT model, calibration, kind, chance_accuracy, replicate_of, string_split_regex(trim(source), '\s*,\s*') AS names
    FROM calibrations
),
chances AS (  -- chance is known for a task if some calibration is drawn from it alone
    SELECT model, task, max(chance_accuracy) AS chance
    FROM (SELECT model, unnest([names[1], calibration]) AS task, chance_accuracy FROM sources
        WHERE len(names) = 1 AND kind <> 'text')
    GROUP BY ALL
),
measured AS (  -- lm-eval's LAMBADA also has a perplexity, but is a task with an accuracy
    SELECT model, task, bool_or(metric = 'perplexity') AND bool_or(higher_is_better) IS NOT TRUE AS is_text
    FROM benchmarks WHERE part_of IS NULL GROUP BY ALL
)
SELECT s.model, s.calibration, m.task, any_value(c.chance) AS chance
FROM sources AS s
JOIN measured AS m ON m.model = s.model AND (
    list_contains(s.names, m.task)
    OR m.task IN (s.calibration, s.replicate_of)
    OR (s.kind = 'text' AND m.is_text)
)
LEFT JOIN chances AS c ON c.model = s.model AND c.task = m.task
GROUP BY ALL;
COMMENT ON VIEW own_tasks IS 'Which benchmark tasks are a calibration''s own: those that it was sampled from or that have its name; for text, every text.';
COMMENT ON COLUMN own_tasks.task IS 'Benchmark task that measures what the calibration was made for.';
COMMENT ON COLUMN own_tasks.chance IS 'Accuracy of guessing on the calibration samples, 0 to 1; null for perplexity or where unknown.';

CREATE OR REPLACE VIEW paired_differences AS
SELECT
    v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.task, v.metric,
    avg(v.value - b.value) AS difference,
    paired_stderr(v.value, b.value, v.metric) AS stderr,
    count(*) FILTER (v.value > b.value) AS higher,
    count(*) FILTER (v.value < b.value) AS lower,
    count(*) FILTER (v.value = 1 AND b.value = 1) AS both_right,
    bool_and(v.value IN (0, 1) AND b.value IN (0, 1)) AS is_right_or_wrong,
    count(*) AS n_samples
FROM benchmark_samples AS v
JOIN benchmark_samples AS b USING (model, task, metric, sample)
WHERE v.selector <> 'none' AND b.selector = 'none' AND v.metric <> 'perplexity'
GROUP BY ALL;
COMMENT ON VIEW paired_differences IS 'One row per variant and task: difference from the base model over the same test documents.';
COMMENT ON COLUMN paired_differences.difference IS 'Mean of variant minus base: -1 to 1 for accuracies, nats per token for nll.';
COMMENT ON COLUMN paired_differences.stderr IS 'Standard error of difference; for answers that are right or wrong, with one more document that differs in each direction [Bonett and Price 2012].';
COMMENT ON COLUMN paired_differences.higher IS 'Documents on which the variant has the higher value.';
COMMENT ON COLUMN paired_differences.lower IS 'Documents on which the variant has the lower value.';
COMMENT ON COLUMN paired_differences.both_right IS 'Documents that both answer rightly.';
COMMENT ON COLUMN paired_differences.is_right_or_wrong IS 'Whether the value of every document is 1 or 0.';
COMMENT ON COLUMN paired_differences.n_samples IS 'Number of documents both were tested on.';

CREATE OR REPLACE VIEW against_base AS
WITH base AS (
    SELECT model, task, part_of, metric, value AS base_value, stderr AS base_stderr FROM benchmarks
    WHERE selector = 'none'
),
joined AS (
    SELECT
        -- the error of a perplexity that overflows is unknown
        m.* REPLACE (CASE WHEN isfinite(m.value) THEN m.stderr END AS stderr), base_value, base_stderr,
        m.value - base_value AS change,
        CASE
            WHEN m.selector = 'none' THEN m.stderr ** 2
            WHEN p.stderr IS NULL THEN 0
            WHEN m.metric = 'perplexity' THEN
                perplexity_covariance(m.value, m.stderr, base_value, base_stderr, p.stderr)
            ELSE (m.stderr ** 2 + base_stderr ** 2 - p.stderr ** 2) / 2
        END AS covariance,
        p.stderr IS NOT NULL AS paired, p.stderr AS paired_stderr, is_right_or_wrong AND higher_is_better AS is_answers,
        both_right, higher, lower, p.n_samples AS n_paired,
        o.task IS NOT NULL AS own,
        -- choices can be guessed, written answers cannot
        (SELECT max(chance) FROM own_tasks AS c WHERE c.model = m.model AND c.task = m.task
            AND NOT is_of_writing(m.metric)) AS chance
    FROM benchmarks AS m
    LEFT JOIN base ON base.model = m.model AND base.task = m.task AND base.metric = m.metric
        AND base.part_of IS NOT DISTINCT FROM m.part_of
    LEFT JOIN paired_differences AS p ON p.model = m.model AND p.calibration = m.calibration
        AND p.selector = m.selector AND p.removed = m.removed AND p.repair = m.repair AND p.healing = m.healing
        AND p.task = m.task AND m.part_of IS NULL
        AND p.metric = CASE WHEN m.metric = 'perplexity' THEN 'nll' ELSE m.metric END
    LEFT JOIN own_tasks AS o ON o.model = m.model AND o.calibration = m.calibration AND o.task = m.task
        AND m.part_of IS NULL
),
told AS (
    SELECT *,
        CASE WHEN is_answers THEN paired_stderr
            ELSE root(stderr ** 2 + base_stderr ** 2 - 2 * covariance) END AS change_stderr,
        metric = 'perplexity' AND NOT own AS general_text,
        CASE WHEN higher_is_better THEN base_value <= chance OR base_value - 1.959964 * base_stderr <= chance END
            AS at_chance,
        CASE WHEN higher_is_better THEN base_error(base_stderr, chance, n_samples) END AS base_error,
        CASE
            WHEN selector = 'none' THEN 1
            WHEN is_answers THEN answer_slope(both_right, higher, lower, n_paired)
            ELSE coalesce(covariance / nullif(base_stderr ** 2, 0), 0)
        END AS slope
    FROM joined
),
shares AS (
    SELECT *,
        CASE
            WHEN at_chance THEN 'at chance'
            WHEN selector <> 'none' AND NOT clear_base(base_value, base_error, chance) THEN 'too few'
        END AS kept_reason,
        CASE
            WHEN at_chance THEN NULL
            WHEN higher_is_better THEN value / nullif(base_value, 0)
            WHEN NOT higher_is_better THEN base_value / nullif(value, 0)
        END AS kept,
        CASE
            WHEN at_chance THEN NULL
            WHEN higher_is_better THEN (value - chance) / nullif(base_value - chance, 0)
            WHEN NOT higher_is_better THEN base_value / nullif(value, 0)
        END AS above,
        base_reach(base_value, base_error, chance) AS reach
    FROM told
),
errors AS (
    SELECT *,
        CASE WHEN is_answers THEN share_stderr(kept, base_value, 0, both_right, higher, lower, n_paired)
            WHEN higher_is_better THEN ratio_stderr(kept, stderr, base_value, base_stderr, covariance)
            ELSE ratio_stderr(kept, base_stderr, value, stderr, covariance) END AS kept_error,
        CASE WHEN is_answers THEN share_stderr(above, base_value, chance, both_right, higher, lower, n_paired)
            WHEN higher_is_better THEN ratio_stderr(above, stderr, base_value - chance, base_stderr, covariance)
            ELSE ratio_stderr(kept, base_stderr, value, stderr, covariance) END AS above_error,
        coalesce(luck_stderr(kept, slope, base_value, base_error, reach, 0), 0) AS kept_luck,
        coalesce(luck_stderr(above, slope, base_value, base_error, reach, chance), 0) AS above_luck
    FROM shares
)
SELECT
    model, calibration, selector, removed, repair, healing, task, part_of, metric, value, stderr, n_samples,
    higher_is_better, own, general_text, chance, at_chance, base_value, base_stderr, change, change_stderr, paired,
    kept,
    CASE WHEN kept_reason IS NULL THEN kept_error + kept_luck END AS kept_stderr,
    CASE WHEN kept_reason IS NULL THEN kept_luck END AS kept_luck,
    above AS kept_above_chance,
    CASE WHEN kept_reason IS NULL THEN above_error + above_luck END AS kept_above_chance_stderr,
    CASE WHEN kept_reason IS NULL THEN above_luck END AS kept_above_chance_luck,
    kept_reason
FROM errors;
COMMENT ON VIEW against_base IS 'One row per variant, task and metric, against the base model.';
COMMENT ON COLUMN against_base.own IS 'Whether the task is the calibration''s own (see own_tasks).';
COMMENT ON COLUMN against_base.chance IS 'Accuracy of guessing on the task, where known, 0 to 1.';
COMMENT ON COLUMN against_base.base_value IS 'The base model''s score on the task.';
COMMENT ON COLUMN against_base.base_stderr IS 'Standard error of base_value.';
COMMENT ON COLUMN against_base.change IS 'value - base_value, in the unit of the metric.';
COMMENT ON COLUMN against_base.change_stderr IS 'Standard error of change, paired over documents (of equal weight for perplexity) where they are known; see paired_differences.';
COMMENT ON COLUMN against_base.paired IS 'Whether change_stderr is paired; otherwise the two errors are added as if independent.';
COMMENT ON COLUMN against_base.general_text IS 'Whether the number is a perplexity of general text: every perplexity that is not the calibration''s own; a calibration of text has none.';
COMMENT ON COLUMN against_base.at_chance IS 'Whether the base model''s 95 % interval reaches chance, so that there is nothing to keep; null where chance or the error is unknown, and for metrics without chance.';
COMMENT ON COLUMN against_base.kept IS 'Share of the base model''s score that is left: value / base (base / value for perplexity, 0 if it is infinite); 1 = all. Null where the base model is at chance.';
COMMENT ON COLUMN against_base.kept_stderr IS 'Standard error of kept, by the delta method, with the covariance where change_stderr is paired; for answers that are right or wrong, with one more document that differs in each direction. It contains kept_luck. Null where an error is unknown, a perplexity is infinite, or kept_reason says why.';
COMMENT ON COLUMN against_base.kept_luck IS 'Part of kept_stderr that allows for a base model that is worse than it was measured, by up to three standard errors, since shares of base models at chance are not shown; 0 for perplexity and where chance is unknown.';
COMMENT ON COLUMN against_base.kept_above_chance IS 'The same counted from chance: (value - chance) / (base - chance); null where chance is unknown or the base model is at chance; kept itself for perplexity.';
COMMENT ON COLUMN against_base.kept_above_chance_stderr IS 'Standard error of kept_above_chance, chance being known exactly; null where kept_stderr is.';
COMMENT ON COLUMN against_base.kept_above_chance_luck IS 'Part of kept_above_chance_stderr, like kept_luck.';
COMMENT ON COLUMN against_base.kept_reason IS 'Why kept has no interval: at chance (the base model is, so there is nothing to keep), or too few (too few documents: the base model is not four standard errors above chance, and a share of so uncertain a number has no interval). Null in the ordinary case.';

CREATE OR REPLACE VIEW scores AS
WITH chosen AS (  -- metrics of `generate` come last, because they are additional to a task's main metric
    SELECT model, task,
        arg_min(metric, coalesce(list_position(['acc_norm', 'acc', 'exact_match', 'perplexity'], metric),
            CASE WHEN is_of_writing(metric) THEN 99 ELSE 98 END)) AS metric
    FROM benchmarks WHERE part_of IS NULL GROUP BY ALL
)
SELECT a.* FROM against_base AS a JOIN chosen USING (model, task, metric) WHERE a.part_of IS NULL;
COMMENT ON VIEW scores IS 'One row per variant and task or group of tasks in the task''s main metric (acc_norm, else acc, exact_match, perplexity), against the base model.';
COMMENT ON COLUMN scores.metric IS 'Main metric of the task.';

CREATE OR REPLACE VIEW kept_means AS
WITH asked AS (
    FROM scores, (VALUES ('own'), ('others'), ('all')) AS a (tasks_of)
    WHERE CASE tasks_of WHEN 'own' THEN own WHEN 'others' THEN higher_is_better AND NOT own ELSE higher_is_better END
)
SELECT model, calibration, selector, removed, repair, healing, tasks_of,
    string_agg(task, ', ' ORDER BY task) AS tasks, count(kept) AS n_tasks, count(*) FILTER (at_chance) AS n_at_chance,
    coalesce(sum(n_samples) FILTER (kept IS NOT NULL), sum(n_samples)) AS n_samples,
    avg(kept) AS kept, mean_stderr(kept, kept_stderr - kept_luck) + avg(kept_luck) AS kept_stderr,
    avg(kept_luck) AS kept_luck, max(kept_reason) FILTER (kept IS NOT NULL) AS kept_reason,
    max(CASE WHEN higher_is_better THEN 1 / (n_samples * base_value) ELSE 0 END)
        FILTER (kept IS NOT NULL) / count(kept) AS kept_step,
    CASE WHEN count(kept_above_chance) = count(kept) THEN avg(kept_above_chance) END AS kept_above_chance,
    mean_stderr(kept, kept_above_chance_stderr - kept_above_chance_luck) + avg(kept_above_chance_luck)
        AS kept_above_chance_stderr,
    avg(kept_above_chance_luck) AS kept_above_chance_luck,
    max(CASE WHEN higher_is_better THEN 1 / (n_samples * (base_value - chance)) ELSE 0 END)
        FILTER (kept IS NOT NULL) / count(kept) AS kept_above_chance_step
FROM asked GROUP BY ALL;
COMMENT ON VIEW kept_means IS 'One row per variant and set of tasks: means of what it keeps. Tasks on which the base model is at chance are left out.';
COMMENT ON COLUMN kept_means.tasks_of IS 'own: the calibration''s own tasks, or texts; others: the other tasks with an accuracy; all: every task with an accuracy.';
COMMENT ON COLUMN kept_means.tasks IS 'The tasks, including those at chance.';
COMMENT ON COLUMN kept_means.n_tasks IS 'Number of tasks in the means.';
COMMENT ON COLUMN kept_means.n_at_chance IS 'Number of tasks left out because the base model is at chance.';
COMMENT ON COLUMN kept_means.n_samples IS 'Test documents of the tasks in the means.';
COMMENT ON COLUMN kept_means.kept IS 'Mean over tasks of the share of the base model''s score that is left, 1 = all; null where the base model is at chance on all of them.';
COMMENT ON COLUMN kept_means.kept_stderr IS 'Standard error of kept over test documents; null where that of any task is.';
COMMENT ON COLUMN kept_means.kept_luck IS 'Part of kept_stderr that allows for base models that were measured too well; it adds up over tasks.';
COMMENT ON COLUMN kept_means.kept_reason IS 'Why kept has no interval: too few documents for one of its tasks.';
COMMENT ON COLUMN kept_means.kept_step IS 'The most that one more wrong document takes from kept.';
COMMENT ON COLUMN kept_means.kept_above_chance IS 'Mean over the same tasks of the share counted from chance; null where chance is unknown for any of them.';
COMMENT ON COLUMN kept_means.kept_above_chance_stderr IS 'Standard error of kept_above_chance.';
COMMENT ON COLUMN kept_means.kept_above_chance_luck IS 'Part of kept_above_chance_stderr, like kept_luck.';
COMMENT ON COLUMN kept_means.kept_above_chance_step IS 'The most that one more wrong document takes from kept_above_chance.';

CREATE OR REPLACE VIEW general_texts AS
WITH joined AS (  -- texts whose documents are joined into one stream; their samples are blocks of windows
    SELECT model, task, coalesce(bool_or(task_version LIKE '% joined=%'), false) AS is_joined
    FROM benchmarks WHERE metric = 'perplexity' GROUP BY ALL
)
SELECT model, calibration, selector, removed, repair, healing,
    string_agg(task, ', ' ORDER BY task) AS texts,
    -- for several texts this is the geometric mean, which is exp of the mean loss
    exp(avg(ln(value))) AS text_perplexity,
    exp(avg(ln(value))) * mean_stderr(value, stderr / value) AS text_perplexity_stderr,
    exp(avg(ln(base_value))) AS text_base,
    -- the worst text counts: a gain on another one does not offset it
    max(value / base_value) AS text_ratio,
    arg_max_null(value / base_value * kept_stderr / kept, value / base_value) AS text_ratio_stderr,
    sum(n_samples) AS text_samples,
    coalesce(sum(n_samples) FILTER (is_joined), 0) AS text_blocks
FROM scores JOIN joined USING (model, task) WHERE general_text GROUP BY ALL;
COMMENT ON VIEW general_texts IS 'One row per variant: what it does to general text, which is every perplexity that is not its calibration''s own.';
COMMENT ON COLUMN general_texts.texts IS 'The texts.';
COMMENT ON COLUMN general_texts.text_perplexity IS 'Perplexity of general text; for several texts the geometric mean.';
COMMENT ON COLUMN general_texts.text_perplexity_stderr IS 'Standard error of text_perplexity.';
COMMENT ON COLUMN general_texts.text_base IS 'The base model''s perplexity on the same texts.';
COMMENT ON COLUMN general_texts.text_ratio IS 'Perplexity by that of the base model, of the text that suffers most: 1 = nothing lost.';
COMMENT ON COLUMN general_texts.text_ratio_stderr IS 'Standard error of text_ratio, paired over documents where they are known.';
COMMENT ON COLUMN general_texts.text_samples IS 'Samples of the texts: documents, or blocks of windows where documents are joined.';
COMMENT ON COLUMN general_texts.text_blocks IS 'Those of them that are blocks.';

CREATE OR REPLACE VIEW shared_errors AS
WITH shared AS (SELECT model, task FROM own_tasks GROUP BY ALL HAVING count(*) > 1),
owned AS MATERIALIZED (
    SELECT *, count(*) OVER variant AS n_values, count(kept) OVER variant AS n_kept FROM scores
    WHERE own AND selector <> 'none' AND model IN (SELECT model FROM shared)
    WINDOW variant AS (PARTITION BY model, calibration, selector, removed, repair, healing)
    QUALIFY (model, task) IN (FROM shared)
),
documents AS (  -- the contribution of each document to value and to both shares, up to a constant
    SELECT o.*, d.sample, d.value AS v,
        CASE WHEN higher_is_better THEN (d.value - kept * b.value) / base_value
            ELSE kept * (b.value - d.value) END AS k,
        CASE WHEN higher_is_better THEN (d.value - kept_above_chance * b.value) / (base_value - chance)
            ELSE kept * (b.value - d.value) END AS a
    FROM owned AS o
    JOIN benchmark_samples AS d USING (model, calibration, selector, removed, repair, healing, task)
    LEFT JOIN (FROM benchmark_samples WHERE selector = 'none') AS b ON b.model = o.model AND b.task = o.task
        AND b.metric = d.metric AND b.sample = d.sample
    WHERE d.metric = CASE WHEN o.metric = 'perplexity' THEN 'nll' ELSE o.metric END
),
known AS (
    SELECT x.model, x.selector, x.removed, x.repair, x.healing, x.task, x.calibration, y.calibration AS other,
        covar_samp(x.v, y.v) / count(*) AS v,
        covar_samp(x.k, y.k) / count(*)
            + CASE WHEN any_value(x.higher_is_better) THEN share_covariance(any_value(x.kept),
                any_value(y.kept), any_value(x.base_value), 0, count(*)) ELSE 0 END AS k,
        covar_samp(x.a, y.a) / count(*)
            + CASE WHEN any_value(x.higher_is_better) THEN share_covariance(any_value(x.kept_above_chance),
                any_value(y.kept_above_chance), any_value(x.base_value), any_value(x.chance), count(*)) ELSE 0 END AS a
    FROM documents AS x JOIN documents AS y USING (model, selector, removed, repair, healing, task, sample)
    WHERE x.calibration < y.calibration GROUP BY ALL
)
SELECT x.model, x.selector, x.removed, x.repair, x.healing, x.calibration, y.calibration AS other_calibration,
    -- without documents this is an upper bound
    sum(coalesce(d.v, x.stderr * y.stderr) / x.n_values / y.n_values) AS value_covariance,
    sum(coalesce(d.k, x.kept_stderr * y.kept_stderr) / x.n_kept / y.n_kept) AS kept_covariance,
    sum(coalesce(d.a, x.kept_above_chance_stderr * y.kept_above_chance_stderr) / x.n_kept / y.n_kept)
        AS kept_above_chance_covariance
FROM owned AS x JOIN owned AS y USING (model, selector, removed, repair, healing, task)
LEFT JOIN known AS d ON d.model = x.model AND d.selector = x.selector AND d.removed = x.removed
    AND d.repair = x.repair AND d.healing = x.healing AND d.task = x.task AND d.calibration = x.calibration
    AND d.other = y.calibration
WHERE x.calibration < y.calibration GROUP BY ALL;
COMMENT ON VIEW shared_errors IS 'One row per two variants of a selector, size and repair whose calibrations, draws of one for instance, have an own task in common: how their errors are correlated, since they share its test documents.';
COMMENT ON COLUMN shared_errors.calibration IS 'Calibration of the first.';
COMMENT ON COLUMN shared_errors.other_calibration IS 'Calibration of the second.';
COMMENT ON COLUMN shared_errors.value_covariance IS 'Covariance of the means over their own tasks, over test documents; an upper bound where these are unknown.';
COMMENT ON COLUMN shared_errors.kept_covariance IS 'The same for the shares kept.';
COMMENT ON COLUMN shared_errors.kept_above_chance_covariance IS 'The same for the shares counted from chance.';
