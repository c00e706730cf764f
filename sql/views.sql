-- The tables of a run as views over results/tables/*.parquet, then views derived from them. Paths are relative: open
-- DuckDB in the project's root.
--
--   duckdb -init sql/views.sql                          a shell with every view
--   duckdb results/lamina.duckdb                        the same with every comment, as the pipeline leaves it
--   make sql, make query Q=NAME                         the same, and the answer of a query, without the duckdb shell
--   SELECT * FROM duckdb_columns() WHERE NOT internal;  the data dictionary of results/lamina.duckdb
--
-- The dictionary is docs/tables.md too. Columns of tables are described in src/lamina/tables, columns that a view adds
-- below it, and a column that a view hands on keeps the description it has in the first view that its FROM and JOIN name.
--
-- A variant is spelled out in six columns: model, calibration, selector, removed, recovery, healing. The base model has
-- removed = 0 and 'none' in the others. Layers keep the numbers they have in the base model.

CREATE OR REPLACE VIEW models AS SELECT * FROM 'results/tables/models.parquet';
CREATE OR REPLACE VIEW calibrations AS SELECT * FROM 'results/tables/calibrations.parquet';
CREATE OR REPLACE VIEW shared_documents AS SELECT * FROM 'results/tables/shared_documents.parquet';
CREATE OR REPLACE VIEW activations AS SELECT * FROM 'results/tables/activations.parquet';
CREATE OR REPLACE VIEW sweeps AS SELECT * FROM 'results/tables/sweeps.parquet';
CREATE OR REPLACE VIEW relevance AS SELECT * FROM 'results/tables/relevance.parquet';
CREATE OR REPLACE VIEW plans AS SELECT * FROM 'results/tables/plans.parquet';
CREATE OR REPLACE VIEW searches AS SELECT * FROM 'results/tables/searches.parquet';
CREATE OR REPLACE VIEW patches AS SELECT * FROM 'results/tables/patches.parquet';
CREATE OR REPLACE VIEW training AS SELECT * FROM 'results/tables/training.parquet';
CREATE OR REPLACE VIEW benchmarks AS SELECT * FROM 'results/tables/benchmarks.parquet';
CREATE OR REPLACE VIEW benchmark_samples AS SELECT * FROM 'results/tables/benchmark_samples.parquet';
CREATE OR REPLACE VIEW agreements AS SELECT * FROM 'results/tables/agreements.parquet';
CREATE OR REPLACE VIEW dissociations AS SELECT * FROM 'results/tables/dissociations.parquet';
CREATE OR REPLACE VIEW comparisons AS SELECT * FROM 'results/tables/comparisons.parquet';
CREATE OR REPLACE VIEW efficiency AS SELECT * FROM 'results/tables/efficiency.parquet';
CREATE OR REPLACE VIEW diagnoses AS SELECT * FROM 'results/tables/diagnoses.parquet';
CREATE OR REPLACE VIEW drafts AS SELECT * FROM 'results/tables/drafts.parquet';
CREATE OR REPLACE VIEW jobs AS SELECT * FROM 'results/tables/jobs.parquet';

-- A standard error from a variance: below 0 is rounding; unknown stays unknown, of which greatest alone would make 0.
CREATE OR REPLACE MACRO root(variance) AS CASE WHEN isfinite(variance) THEN sqrt(greatest(0, variance)) END;

-- Standard errors of upper / lower, and of means: with independent errors, and with errors that may all go together. A
-- mean with an unknown error in it has an unknown error.
CREATE OR REPLACE MACRO ratio_stderr(ratio, upper_stderr, lower, lower_stderr, covariance) AS
    if(isfinite(lower), root(upper_stderr ** 2 + ratio ** 2 * lower_stderr ** 2 - 2 * ratio * covariance) / lower, NULL);
CREATE OR REPLACE MACRO mean_stderr(value, stderr) AS
    CASE WHEN count(stderr) = count(value) THEN sqrt(sum(stderr ** 2)) / count(value) END;
CREATE OR REPLACE MACRO joint_stderr(value, stderr) AS CASE WHEN count(stderr) = count(value) THEN avg(stderr) END;

-- Student's t: what a standard error is multiplied by for a 95 % interval of the mean of n numbers.
CREATE OR REPLACE MACRO t95(n) AS coalesce([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086][n - 1], 1.96 + 2.4 / (n - 1));

-- What a normal number exceeds with probability p < 0.5, in standard deviations, to 0.0005 [Abramowitz and Stegun 26.2.23].
CREATE OR REPLACE MACRO z_above(p) AS sqrt(-2 * ln(p)) - (2.515517 + 0.802853 * sqrt(-2 * ln(p)) - 0.020656 * ln(p))
    / (1 + 1.432788 * sqrt(-2 * ln(p)) - 0.378538 * ln(p) + 0.001308 * sqrt(-2 * ln(p)) ** 3);

-- What `certain` means everywhere: other test documents would show it too, with 97.5 %, and of the `tried` numbers that
-- compete for one place all at once (Bonferroni, which holds however alike they are). Without that the best of many would
-- be certain because it was picked for its luck. `ahead` is the distance from the threshold. `step` is what one wrong
-- document more takes from the number, 0 if that has no bound: a number at the threshold has more wrong documents than were
-- seen, and the error is that of such a number. Null if the error is unknown.
CREATE OR REPLACE MACRO certain(ahead, stderr, step, tried) AS
    ahead > 0 AND ahead ** 2 > z_above(0.025 / tried) ** 2 * (stderr ** 2 + ahead * step);

CREATE OR REPLACE VIEW own_tasks AS
WITH sources AS (
    SELECT model, calibration, kind, chance_accuracy, replicate_of, string_split(source, ',') AS names
    FROM calibrations
),
chances AS (  -- chance is known for a task when some calibration draws on it alone
    SELECT model, task, max(chance_accuracy) AS chance
    FROM (SELECT model, unnest([names[1], calibration]) AS task, chance_accuracy FROM sources
        WHERE len(names) = 1 AND kind <> 'text')
    GROUP BY ALL
),
measured AS (SELECT DISTINCT model, task, metric = 'perplexity' AS is_text FROM benchmarks WHERE part_of IS NULL)
SELECT s.model, s.calibration, m.task, any_value(c.chance) AS chance
FROM sources AS s
JOIN measured AS m ON m.model = s.model AND (
    list_contains(list_transform(s.names, lambda name: trim(name)), m.task)
    OR m.task IN (s.calibration, s.replicate_of)
    OR (s.kind = 'text' AND m.is_text)
)
LEFT JOIN chances AS c ON c.model = s.model AND c.task = m.task
GROUP BY ALL;
COMMENT ON VIEW own_tasks IS 'Which benchmark tasks are a calibration''s own: those it was sampled from, or of its name; for text, every perplexity.';
COMMENT ON COLUMN own_tasks.task IS 'Benchmark task that measures what the calibration was made for.';
COMMENT ON COLUMN own_tasks.chance IS 'Accuracy of guessing on the calibration samples, 0 to 1; null for perplexity or where unknown.';

CREATE OR REPLACE VIEW paired_differences AS
SELECT
    v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task, v.metric,
    avg(v.value - b.value) AS difference,
    stddev_samp(v.value - b.value) / sqrt(count(*)) AS stderr,
    count(*) FILTER (v.value > b.value) AS higher,
    count(*) FILTER (v.value < b.value) AS lower,
    count(*) AS n_samples
FROM benchmark_samples AS v
JOIN benchmark_samples AS b USING (model, task, metric, sample)
WHERE v.removed > 0 AND b.removed = 0 AND v.metric <> 'perplexity'
GROUP BY ALL;
COMMENT ON VIEW paired_differences IS 'One row per variant and task: difference to the base model over the same test documents.';
COMMENT ON COLUMN paired_differences.difference IS 'Mean of variant minus base: -1 to 1 for accuracies, nats per token for nll.';
COMMENT ON COLUMN paired_differences.stderr IS 'Standard error of difference: standard deviation of the differences / sqrt(n_samples).';
COMMENT ON COLUMN paired_differences.higher IS 'Documents on which the variant has the higher value.';
COMMENT ON COLUMN paired_differences.lower IS 'Documents on which the variant has the lower value.';
COMMENT ON COLUMN paired_differences.n_samples IS 'Number of documents both were tested on.';

CREATE OR REPLACE VIEW against_base AS
WITH base AS (
    SELECT model, task, part_of, metric, value AS base_value, stderr AS base_stderr FROM benchmarks WHERE removed = 0
),
joined AS (
    SELECT
        -- of a perplexity that overflows nobody knows the error
        m.* REPLACE (if(isfinite(m.value), m.stderr, NULL) AS stderr), base_value, base_stderr,
        m.value - base_value AS change,
        CASE
            WHEN m.removed = 0 THEN m.stderr ** 2
            WHEN p.stderr IS NULL THEN 0
            -- perplexity = exp(nll): its documents are paired by their nll, errors relative to the value
            WHEN m.metric = 'perplexity' THEN
                m.value * base_value * ((m.stderr / m.value) ** 2 + (base_stderr / base_value) ** 2 - p.stderr ** 2) / 2
            ELSE (m.stderr ** 2 + base_stderr ** 2 - p.stderr ** 2) / 2
        END AS covariance,
        p.stderr IS NOT NULL AS paired,
        o.task IS NOT NULL AS own,
        -- a choice can be guessed, what is written cannot
        (SELECT max(chance) FROM own_tasks AS c WHERE c.model = m.model AND c.task = m.task
            AND NOT regexp_matches(m.metric, 'written|^pass@|repetition|unstopped|length$')) AS chance
    FROM benchmarks AS m
    LEFT JOIN base ON base.model = m.model AND base.task = m.task AND base.metric = m.metric
        AND base.part_of IS NOT DISTINCT FROM m.part_of
    LEFT JOIN paired_differences AS p ON p.model = m.model AND p.calibration = m.calibration
        AND p.selector = m.selector AND p.removed = m.removed AND p.recovery = m.recovery AND p.healing = m.healing
        AND p.task = m.task AND p.metric = if(m.metric = 'perplexity', 'nll', m.metric) AND m.part_of IS NULL
    LEFT JOIN own_tasks AS o ON o.model = m.model AND o.calibration = m.calibration AND o.task = m.task
        AND m.part_of IS NULL
),
told AS (
    SELECT *,
        root(stderr ** 2 + base_stderr ** 2 - 2 * covariance) AS change_stderr,
        metric = 'perplexity' AND NOT own AS general_text,
        CASE WHEN higher_is_better THEN base_value <= chance OR base_value - 1.959964 * base_stderr <= chance END
            AS at_chance
    FROM joined
),
shares AS (
    SELECT *,
        CASE
            WHEN at_chance THEN NULL
            WHEN higher_is_better THEN value / nullif(base_value, 0)
            WHEN NOT higher_is_better THEN base_value / nullif(value, 0)
        END AS kept,
        CASE
            WHEN at_chance THEN NULL
            WHEN higher_is_better THEN (value - chance) / nullif(base_value - chance, 0)
            WHEN NOT higher_is_better THEN base_value / nullif(value, 0)
        END AS above
    FROM told
)
SELECT
    model, calibration, selector, removed, recovery, healing, task, part_of, metric, value, stderr, n_samples,
    higher_is_better, own, general_text, chance, at_chance, base_value, base_stderr, change, change_stderr, paired,
    kept,
    if(higher_is_better, ratio_stderr(kept, stderr, base_value, base_stderr, covariance),
        ratio_stderr(kept, base_stderr, value, stderr, covariance)) AS kept_stderr,
    above AS kept_above_chance,
    if(higher_is_better, ratio_stderr(above, stderr, base_value - chance, base_stderr, covariance),
        ratio_stderr(kept, base_stderr, value, stderr, covariance)) AS kept_above_chance_stderr
FROM shares;
COMMENT ON VIEW against_base IS 'One row per variant, task and metric, against the base model.';
COMMENT ON COLUMN against_base.own IS 'Whether the task is the calibration''s own (see own_tasks).';
COMMENT ON COLUMN against_base.chance IS 'Accuracy of guessing on the task, where known, 0 to 1.';
COMMENT ON COLUMN against_base.base_value IS 'The base model''s number on the task.';
COMMENT ON COLUMN against_base.base_stderr IS 'Standard error of base_value.';
COMMENT ON COLUMN against_base.change IS 'value - base_value, in the unit of the metric.';
COMMENT ON COLUMN against_base.change_stderr IS 'Standard error of change, paired over documents (of equal weight for perplexity) where they are known.';
COMMENT ON COLUMN against_base.paired IS 'Whether change_stderr is paired; otherwise the two errors are added as if independent.';
COMMENT ON COLUMN against_base.general_text IS 'Whether the number tells what happens to general text: every perplexity does that is not the calibration''s own; a calibration of text has none.';
COMMENT ON COLUMN against_base.at_chance IS 'Whether the base model''s 95 % interval reaches chance, so that there is nothing to keep; null where chance or the error is unknown, and for what has no chance.';
COMMENT ON COLUMN against_base.kept IS 'Share of the base model''s number that is left: value / base (base / value for perplexity, 0 if it is infinite); 1 = all. Null where the base model is at chance.';
COMMENT ON COLUMN against_base.kept_stderr IS 'Standard error of kept, by the delta method, with the covariance where change_stderr is paired; null where an error is unknown or a perplexity infinite.';
COMMENT ON COLUMN against_base.kept_above_chance IS 'The same counted from chance: (value - chance) / (base - chance); null where chance is unknown or the base model at it; kept itself for perplexity.';
COMMENT ON COLUMN against_base.kept_above_chance_stderr IS 'Standard error of kept_above_chance, chance taken as known.';

CREATE OR REPLACE VIEW scores AS
WITH chosen AS (  -- what is measured by `generate` stands beside a task's main metric
    SELECT model, task,
        arg_min(metric, coalesce(list_position(['acc_norm', 'acc', 'exact_match', 'perplexity'], metric),
            if(regexp_matches(metric, 'written|^pass@|repetition|unstopped|length$'), 99, 98))) AS metric
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
SELECT model, calibration, selector, removed, recovery, healing, tasks_of,
    string_agg(task, ', ' ORDER BY task) AS tasks, count(kept) AS n_tasks, count(*) FILTER (at_chance) AS n_at_chance,
    coalesce(sum(n_samples) FILTER (kept IS NOT NULL), sum(n_samples)) AS n_samples,
    avg(kept) AS kept, mean_stderr(kept, kept_stderr) AS kept_stderr,
    max(if(higher_is_better, 1 / (n_samples * base_value), 0)) FILTER (kept IS NOT NULL) / count(kept) AS kept_step,
    if(count(kept_above_chance) = count(kept), avg(kept_above_chance), NULL) AS kept_above_chance,
    mean_stderr(kept, kept_above_chance_stderr) AS kept_above_chance_stderr,
    max(if(higher_is_better, 1 / (n_samples * (base_value - chance)), 0)) FILTER (kept IS NOT NULL) / count(kept)
        AS kept_above_chance_step
FROM asked GROUP BY ALL;
COMMENT ON VIEW kept_means IS 'One row per variant and set of tasks: means of what it keeps. Tasks at which the base model is at chance are not in them.';
COMMENT ON COLUMN kept_means.tasks_of IS 'own: the calibration''s own tasks, or texts; others: the other tasks with an accuracy; all: every task with an accuracy.';
COMMENT ON COLUMN kept_means.tasks IS 'The tasks, those at chance too.';
COMMENT ON COLUMN kept_means.n_tasks IS 'Number of tasks in the means.';
COMMENT ON COLUMN kept_means.n_at_chance IS 'Number of tasks left out because the base model is at chance.';
COMMENT ON COLUMN kept_means.n_samples IS 'Test documents of the tasks in the means.';
COMMENT ON COLUMN kept_means.kept IS 'Mean over tasks of the share of the base model''s number that is left, 1 = all; null where it is at chance on all of them.';
COMMENT ON COLUMN kept_means.kept_stderr IS 'Standard error of kept over test documents.';
COMMENT ON COLUMN kept_means.kept_step IS 'Most that one wrong document more takes from kept.';
COMMENT ON COLUMN kept_means.kept_above_chance IS 'Mean over the same tasks of the share counted from chance; null where chance is unknown for one.';
COMMENT ON COLUMN kept_means.kept_above_chance_stderr IS 'Standard error of kept_above_chance.';
COMMENT ON COLUMN kept_means.kept_above_chance_step IS 'Most that one wrong document more takes from kept_above_chance.';

CREATE OR REPLACE VIEW general_texts AS
SELECT model, calibration, selector, removed, recovery, healing,
    string_agg(task, ', ' ORDER BY task) AS texts,
    -- of several texts the geometric mean, which is exp of the mean loss
    exp(avg(ln(value))) AS text_perplexity,
    exp(avg(ln(value))) * mean_stderr(value, stderr / value) AS text_perplexity_stderr,
    exp(avg(ln(base_value))) AS text_base,
    exp(avg(ln(value / base_value))) AS text_ratio,
    exp(avg(ln(value / base_value))) * mean_stderr(value, kept_stderr / kept) AS text_ratio_stderr,
    sum(n_samples) AS text_samples
FROM scores WHERE general_text GROUP BY ALL;
COMMENT ON VIEW general_texts IS 'One row per variant: what it does to general text, which is every perplexity that is not its calibration''s own.';
COMMENT ON COLUMN general_texts.texts IS 'The texts.';
COMMENT ON COLUMN general_texts.text_perplexity IS 'Perplexity of general text; of several texts the geometric mean.';
COMMENT ON COLUMN general_texts.text_perplexity_stderr IS 'Standard error of text_perplexity.';
COMMENT ON COLUMN general_texts.text_base IS 'The base model''s perplexity on the same texts.';
COMMENT ON COLUMN general_texts.text_ratio IS 'text_perplexity / text_base: 1 = nothing lost.';
COMMENT ON COLUMN general_texts.text_ratio_stderr IS 'Standard error of text_ratio, paired over documents where they are known.';
COMMENT ON COLUMN general_texts.text_samples IS 'Documents of the texts.';

CREATE OR REPLACE VIEW shared_errors AS
WITH shared AS (SELECT model, task FROM own_tasks GROUP BY ALL HAVING count(*) > 1),
owned AS MATERIALIZED (
    SELECT *, count(*) OVER variant AS n_values, count(kept) OVER variant AS n_kept FROM scores
    WHERE own AND removed > 0 AND model IN (SELECT model FROM shared)
    WINDOW variant AS (PARTITION BY model, calibration, selector, removed, recovery, healing)
    QUALIFY (model, task) IN (FROM shared)
),
documents AS (  -- what each adds to value and to both shares, as far as they differ from one document to another
    SELECT o.*, d.sample, d.value AS v,
        if(higher_is_better, (d.value - kept * b.value) / base_value, kept * (b.value - d.value)) AS k,
        if(higher_is_better, (d.value - kept_above_chance * b.value) / (base_value - chance), kept * (b.value - d.value))
            AS a
    FROM owned AS o
    JOIN benchmark_samples AS d USING (model, calibration, selector, removed, recovery, healing, task)
    LEFT JOIN (FROM benchmark_samples WHERE removed = 0) AS b ON b.model = o.model AND b.task = o.task
        AND b.metric = d.metric AND b.sample = d.sample
    WHERE d.metric = if(o.metric = 'perplexity', 'nll', o.metric)
),
known AS (
    SELECT x.model, x.selector, x.removed, x.recovery, x.healing, x.task, x.calibration, y.calibration AS other,
        covar_samp(x.v, y.v) / count(*) AS v, covar_samp(x.k, y.k) / count(*) AS k, covar_samp(x.a, y.a) / count(*) AS a
    FROM documents AS x JOIN documents AS y USING (model, selector, removed, recovery, healing, task, sample)
    WHERE x.calibration < y.calibration GROUP BY ALL
)
SELECT x.model, x.selector, x.removed, x.recovery, x.healing, x.calibration, y.calibration AS other_calibration,
    -- of documents that are not known at most this
    sum(coalesce(d.v, x.stderr * y.stderr) / x.n_values / y.n_values) AS value_covariance,
    sum(coalesce(d.k, x.kept_stderr * y.kept_stderr) / x.n_kept / y.n_kept) AS kept_covariance,
    sum(coalesce(d.a, x.kept_above_chance_stderr * y.kept_above_chance_stderr) / x.n_kept / y.n_kept)
        AS kept_above_chance_covariance
FROM owned AS x JOIN owned AS y USING (model, selector, removed, recovery, healing, task)
LEFT JOIN known AS d ON d.model = x.model AND d.selector = x.selector AND d.removed = x.removed
    AND d.recovery = x.recovery AND d.healing = x.healing AND d.task = x.task AND d.calibration = x.calibration
    AND d.other = y.calibration
WHERE x.calibration < y.calibration GROUP BY ALL;
COMMENT ON VIEW shared_errors IS 'One row per two variants of a selector, size and repair whose calibrations, draws of one for instance, have an own task in common: how their errors go together, since they share its test documents.';
COMMENT ON COLUMN shared_errors.calibration IS 'Calibration of the first.';
COMMENT ON COLUMN shared_errors.other_calibration IS 'Calibration of the second.';
COMMENT ON COLUMN shared_errors.value_covariance IS 'Covariance of the means over their own tasks, over test documents; where these are not known the most that it can be.';
COMMENT ON COLUMN shared_errors.kept_covariance IS 'The same of the shares kept.';
COMMENT ON COLUMN shared_errors.kept_above_chance_covariance IS 'The same of the shares counted from chance.';

CREATE OR REPLACE VIEW relevance_means AS
WITH drawn AS (
    SELECT r.model, c.replicate_of AS calibration, metric, unit, layer, component,
        avg(score) AS score, stddev_samp(score) AS spread, count(score) AS n_draws, sum(r.n_samples) AS n_samples,
        max(reason) AS reason
    FROM relevance AS r JOIN calibrations AS c USING (model, calibration)
    WHERE r.selector = 'base' AND r.removed = 0 AND c.replicate_of IS NOT NULL GROUP BY ALL
)
SELECT *, score - t95(n_draws) * spread / sqrt(n_draws) AS ci_low, score + t95(n_draws) * spread / sqrt(n_draws) AS ci_high
FROM drawn;
COMMENT ON VIEW relevance_means IS 'One row per group of replicated calibrations, metric and unit of the base model: the mean over draws.';
COMMENT ON COLUMN relevance_means.calibration IS 'Label of the group.';
COMMENT ON COLUMN relevance_means.metric IS 'Relevance metric.';
COMMENT ON COLUMN relevance_means.unit IS 'Unit: 12, 12.attention or 12.mlp.';
COMMENT ON COLUMN relevance_means.layer IS 'Layer of the unit, 0 to L - 1.';
COMMENT ON COLUMN relevance_means.component IS 'Kind of unit: layer, attention or mlp.';
COMMENT ON COLUMN relevance_means.score IS 'Mean relevance of the draws that have one, in the unit of the metric.';
COMMENT ON COLUMN relevance_means.spread IS 'Standard deviation of one draw from another; null for a single draw.';
COMMENT ON COLUMN relevance_means.n_draws IS 'Number of draws with a score.';
COMMENT ON COLUMN relevance_means.n_samples IS 'Samples of all draws together; the same one may be in several.';
COMMENT ON COLUMN relevance_means.reason IS 'Why a draw has no score; null in the ordinary case.';
COMMENT ON COLUMN relevance_means.ci_low IS 'Lower end of the 95 % interval of score over draws, by Student''s t; null for a single draw.';
COMMENT ON COLUMN relevance_means.ci_high IS 'Upper end of the 95 % interval of score over draws.';

CREATE OR REPLACE VIEW score_means AS
WITH selectors AS (SELECT DISTINCT model, selector, replicate_of FROM plans WHERE replicate_of IS NOT NULL),
drawn AS (
    SELECT s.* REPLACE (coalesce(c.replicate_of, s.calibration) AS calibration,
            coalesce(p.replicate_of, s.selector) AS selector, if(isfinite(value), value, NULL) AS value,
            if(isfinite(kept), kept, NULL) AS kept),
        s.calibration AS drawn_calibration, s.selector AS drawn_selector
    FROM scores AS s LEFT JOIN calibrations AS c USING (model, calibration) LEFT JOIN selectors AS p USING (model, selector)
    WHERE removed > 0 AND (c.replicate_of IS NOT NULL OR p.replicate_of IS NOT NULL)
),
-- draws of a calibration under one selector are no further selectors, and the other way round: first the mean over the
-- one, then the spread over the other
averaged AS (
    SELECT model, calibration, selector, removed, recovery, healing, task, drawn_calibration, drawn_selector,
        avg(value) AS value, avg(kept) AS kept
    FROM drawn WHERE value IS NOT NULL
    GROUP BY model, calibration, selector, removed, recovery, healing, task,
        GROUPING SETS ((drawn_calibration), (drawn_selector))
),
spreads AS (
    SELECT model, calibration, selector, removed, recovery, healing, task, drawn_selector IS NULL AS over_calibrations,
        count(*) AS n, var_samp(value) AS variance, var_samp(kept) AS kept_variance
    FROM averaged GROUP BY ALL
),
varied AS (
    SELECT model, calibration, selector, removed, recovery, healing, task,
        max(n) FILTER (over_calibrations) AS n_calibrations, max(n) FILTER (NOT over_calibrations) AS n_selectors,
        sqrt(sum(variance)) AS spread, sqrt(sum(kept_variance)) AS kept_spread,
        sqrt(sum(t95(n) ** 2 * variance / n)) AS reach
    FROM spreads GROUP BY ALL
),
means AS (
    SELECT model, calibration, selector, removed, recovery, healing, task, metric, higher_is_better, bool_and(own) AS own,
        max(chance) AS chance, any_value(base_value) AS base_value, any_value(base_stderr) AS base_stderr,
        any_value(n_samples) AS n_samples, avg(value) AS value, count(value) AS n_draws,
        joint_stderr(value, if(value IS NULL, NULL, stderr)) AS stderr, avg(kept) AS kept
    FROM drawn GROUP BY ALL
)
SELECT m.*, n_calibrations, n_selectors, spread, kept_spread, value - reach AS ci_low, value + reach AS ci_high
FROM means AS m LEFT JOIN varied USING (model, calibration, selector, removed, recovery, healing, task);
COMMENT ON VIEW score_means IS 'One row per variant and task, with replicated calibrations and selectors as one: the mean over draws.';
COMMENT ON COLUMN score_means.calibration IS 'Label of the calibration''s group, else its name.';
COMMENT ON COLUMN score_means.selector IS 'Label of the selector''s group, else its name.';
COMMENT ON COLUMN score_means.own IS 'Whether the task is the calibration''s own (see own_tasks).';
COMMENT ON COLUMN score_means.chance IS 'Accuracy of guessing on the task, where known, 0 to 1.';
COMMENT ON COLUMN score_means.base_value IS 'The base model''s number on the task.';
COMMENT ON COLUMN score_means.base_stderr IS 'Standard error of base_value.';
COMMENT ON COLUMN score_means.n_samples IS 'Number of test documents, the same ones for every draw.';
COMMENT ON COLUMN score_means.value IS 'Mean over draws of the measured number; infinite perplexities are left out.';
COMMENT ON COLUMN score_means.spread IS 'Standard deviation of one draw from another: of selectors (means over the calibrations), of calibrations (means over the selectors), or both added in squares; null for a single draw.';
COMMENT ON COLUMN score_means.n_draws IS 'Number of variants behind value: calibrations times selectors.';
COMMENT ON COLUMN score_means.n_calibrations IS 'Number of draws of the calibration among them.';
COMMENT ON COLUMN score_means.n_selectors IS 'Number of draws of the selector among them.';
COMMENT ON COLUMN score_means.stderr IS 'Standard error of one draw''s value over test documents, on average; draws share the documents. Null where one is unknown.';
COMMENT ON COLUMN score_means.kept IS 'Mean over draws of the share of the base model''s number that is left.';
COMMENT ON COLUMN score_means.kept_spread IS 'Standard deviation of kept from one draw to another, as spread.';
COMMENT ON COLUMN score_means.ci_low IS 'Lower end of the 95 % interval of value over draws: Student''s t over n_selectors and over n_calibrations, added in squares; null for a single draw.';
COMMENT ON COLUMN score_means.ci_high IS 'Upper end of the 95 % interval of value over draws.';

CREATE OR REPLACE VIEW choices_and_generation AS
SELECT
    w.model, w.calibration, w.selector, w.removed, w.recovery, w.healing, w.task, w.own, w.n_samples,
    c.metric AS choice_metric, c.value AS choice, c.stderr AS choice_stderr,
    c.kept AS choice_kept, c.kept_stderr AS choice_kept_stderr,
    w.value AS written, w.stderr AS written_stderr, w.kept AS written_kept, w.kept_stderr AS written_kept_stderr
FROM against_base AS w
JOIN scores AS c USING (model, calibration, selector, removed, recovery, healing, task)
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
    SELECT v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task,
        if(v.metric = 'nll', 'perplexity', v.metric) AS metric,
        stddev_samp(v.value - p.value) / sqrt(count(*)) AS stderr
    FROM benchmark_samples AS v
    JOIN benchmark_samples AS p USING (model, calibration, selector, removed, task, metric, sample)
    WHERE v.removed > 0 AND p.recovery = 'none' AND p.healing = 'none' AND v.metric <> 'perplexity'
        AND NOT (v.recovery = 'none' AND v.healing = 'none')
    GROUP BY ALL
)
SELECT
    v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task, v.metric, v.own, v.general_text,
    v.base_value, p.value AS pruned_value, v.value, v.stderr,
    CASE WHEN v.higher_is_better THEN v.value - p.value ELSE p.value - v.value END AS gain,
    CASE
        WHEN s.stderr IS NULL THEN sqrt(v.stderr ** 2 + p.stderr ** 2)
        WHEN v.metric = 'perplexity' THEN root(v.stderr ** 2 + p.stderr ** 2
            - v.value * p.value * ((v.stderr / v.value) ** 2 + (p.stderr / p.value) ** 2 - s.stderr ** 2))
        ELSE s.stderr
    END AS gain_stderr,
    CASE WHEN v.higher_is_better THEN v.base_value - p.value ELSE p.value - v.base_value END AS loss,
    p.change_stderr AS loss_stderr,
    v.n_samples
FROM told AS v
JOIN told AS p USING (model, calibration, selector, removed, task, metric)
LEFT JOIN paired AS s ON s.model = v.model AND s.calibration = v.calibration AND s.selector = v.selector
    AND s.removed = v.removed AND s.recovery = v.recovery AND s.healing = v.healing AND s.task = v.task
    AND s.metric = v.metric
WHERE v.removed > 0 AND p.recovery = 'none' AND p.healing = 'none' AND NOT (v.recovery = 'none' AND v.healing = 'none');
COMMENT ON VIEW repairs IS 'One row per repaired variant and task: what recovery and healing gave back against the same plan without repair.';
COMMENT ON COLUMN repairs.metric IS 'Main metric of the task.';
COMMENT ON COLUMN repairs.pruned_value IS 'The number after pruning, before repair.';
COMMENT ON COLUMN repairs.value IS 'The number after repair.';
COMMENT ON COLUMN repairs.gain IS 'What repair gave back, in the unit of the metric; positive = better.';
COMMENT ON COLUMN repairs.gain_stderr IS 'Standard error of gain, paired over documents where they are known.';
COMMENT ON COLUMN repairs.loss IS 'What pruning had cost against the base model; positive = worse.';
COMMENT ON COLUMN repairs.loss_stderr IS 'Standard error of loss.';

CREATE OR REPLACE VIEW proxies AS
WITH bare AS MATERIALIZED (
    SELECT * FROM scores WHERE removed > 0 AND recovery = 'none' AND healing = 'none' AND higher_is_better
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
    WHERE v.recovery = 'none' AND v.healing = 'none' AND o.recovery = 'none' AND o.healing = 'none'
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

CREATE OR REPLACE VIEW relevance_wide AS
WITH wide AS (
    SELECT
        model, calibration, component, layer, unit,
        max(score) FILTER (metric = 'accuracy') AS accuracy,
        max(ci_low) FILTER (metric = 'accuracy') AS accuracy_low,
        max(ci_high) FILTER (metric = 'accuracy') AS accuracy_high,
        max(n_samples) FILTER (metric = 'accuracy') AS accuracy_samples,
        max(reason) FILTER (metric = 'accuracy') AS accuracy_reason,
        max(score) FILTER (metric = 'cosine') AS cosine,
        max(ci_low) FILTER (metric = 'cosine') AS cosine_low,
        max(ci_high) FILTER (metric = 'cosine') AS cosine_high,
        max(n_samples) FILTER (metric = 'cosine') AS cosine_samples,
        max(score) FILTER (metric = 'angular') AS angular,
        max(score) FILTER (metric = 'perplexity') AS perplexity,
        max(score) FILTER (metric = 'output_cosine') AS output_cosine,
        max(score) FILTER (metric = 'output_norm') AS output_norm,
        max(score) FILTER (metric = 'output_js') AS output_js,
        max(score) FILTER (metric = 'output_kl') AS output_kl,
        max(score) FILTER (metric = 'expected_accuracy') AS expected_accuracy,
        max(score) FILTER (metric = 'shrunk_accuracy') AS shrunk_accuracy,
        max(score) FILTER (metric = 'margin') AS margin,
        max(score) FILTER (metric = 'agreement') AS agreement,
        max(score) FILTER (metric = 'acceptance') AS acceptance,
        max(score) FILTER (metric = 'shapley') AS shapley,
        max(score) FILTER (metric = 'presence') AS presence,
        max(score) FILTER (metric = 'residual') AS residual,
        max(score) FILTER (metric = 'taylor') AS taylor,
        max(score) FILTER (metric = 'magnitude') AS magnitude,
        max(score) FILTER (metric = 'random') AS random
    FROM relevance WHERE selector = 'base' AND removed = 0 GROUP BY ALL
)
SELECT *,
    -- Equals share the mean of their places, which is what Spearman's correlation needs.
    CASE WHEN accuracy IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY accuracy NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, accuracy) - 1) / 2 END AS accuracy_rank,
    CASE WHEN cosine IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY cosine NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, cosine) - 1) / 2 END AS cosine_rank
FROM wide;
COMMENT ON VIEW relevance_wide IS 'One row per unit of the base model and calibration, one column per metric (null where not measured; metrics of your own stand in relevance).';
COMMENT ON COLUMN relevance_wide.accuracy IS 'Accuracy relevance: 1 = all above chance lost, 0 = none lost, negative = better without.';
COMMENT ON COLUMN relevance_wide.accuracy_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_samples IS 'Number of samples behind accuracy.';
COMMENT ON COLUMN relevance_wide.accuracy_reason IS 'Why accuracy is null.';
COMMENT ON COLUMN relevance_wide.cosine IS 'Cosine relevance: mean of 1 - cos over the unit, 0 to 2.';
COMMENT ON COLUMN relevance_wide.cosine_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_samples IS 'Number of samples behind cosine.';
COMMENT ON COLUMN relevance_wide.angular IS 'Angular distance over the unit at the last token, divided by pi, 0 to 1.';
COMMENT ON COLUMN relevance_wide.perplexity IS 'Rise of the mean negative log-likelihood without the unit, in nats per token.';
COMMENT ON COLUMN relevance_wide.output_cosine IS '1 - cos of the logits against the base model.';
COMMENT ON COLUMN relevance_wide.output_norm IS 'Euclidean distance of the logits from the base model.';
COMMENT ON COLUMN relevance_wide.output_js IS 'Jensen-Shannon divergence of the outputs, in nats.';
COMMENT ON COLUMN relevance_wide.output_kl IS 'KL divergence of the outputs from the base model, in nats.';
COMMENT ON COLUMN relevance_wide.expected_accuracy IS 'Share of the mean probability of right choices above chance that is lost, 1 = all.';
COMMENT ON COLUMN relevance_wide.shrunk_accuracy IS 'Share of the accuracy above chance that is lost, shrunk to what the sureness of right answers predicts.';
COMMENT ON COLUMN relevance_wide.margin IS 'Fall of the right choice''s lead over the best other one, in nats (per character for acc_norm).';
COMMENT ON COLUMN relevance_wide.agreement IS 'Share of scored positions where the likeliest token is not the base model''s.';
COMMENT ON COLUMN relevance_wide.acceptance IS 'Total variation distance of the outputs: how often a draft would be rejected.';
COMMENT ON COLUMN relevance_wide.shapley IS 'What the unit adds to models of the other units, over all orders of removal; by default a share of right answers.';
COMMENT ON COLUMN relevance_wide.presence IS 'How much better random cut models are that keep the unit; by default a share of right answers.';
COMMENT ON COLUMN relevance_wide.residual IS 'Share of the stream''s variance that no linear patch gives back where the unit went: 0 to about 1.';
COMMENT ON COLUMN relevance_wide.taylor IS 'Sum over the weights of abs(weight x gradient).';
COMMENT ON COLUMN relevance_wide.magnitude IS 'Sum over the weights of their absolute value.';
COMMENT ON COLUMN relevance_wide.random IS 'Place in a seeded permutation.';
COMMENT ON COLUMN relevance_wide.accuracy_rank IS 'Place by accuracy among units of the kind, 1 = least relevant, ties share a place.';
COMMENT ON COLUMN relevance_wide.cosine_rank IS 'Place by cosine among units of the kind, 1 = least relevant, ties share a place.';

CREATE OR REPLACE VIEW removal_order AS
WITH ordered AS (
    SELECT model, calibration, selector, removed,
        string_agg(unit, ' ' ORDER BY position) AS units,
        coalesce(nullif(split_part(any_value(unit) FILTER (donor IS NULL), '.', 2), ''),
            if(any_value(unit) IS NULL, NULL, 'layer')) AS component,
        list(try_cast(unit AS BIGINT)) FILTER (unit NOT LIKE '%.%') AS layers,
        arg_min_null(accuracy_before, position) AS accuracy_before,
        arg_max_null(accuracy_after, position) AS accuracy_after,
        any_value(refused) AS refused
    FROM plans GROUP BY ALL
)
SELECT * EXCLUDE (layers),
    if(units IS NULL, NULL, coalesce(len(list_filter(layers, lambda l: NOT list_contains(layers, l - 1))), 0)) AS runs
FROM ordered;
COMMENT ON VIEW removal_order IS 'One row per plan: its units in order of removal, in one string.';
COMMENT ON COLUMN removal_order.units IS 'Units separated by spaces, first removed first; 7.@math is replaced by a donor''s. Null for a refused plan.';
COMMENT ON COLUMN removal_order.component IS 'Kind of the units: layer, attention or mlp; null for a refused plan.';
COMMENT ON COLUMN removal_order.runs IS 'Runs of removed layers: contiguous ones are one run, 0 where only halves go; null for a refused plan.';
COMMENT ON COLUMN removal_order.accuracy_before IS 'Accuracy on the calibration before anything went, 0 to 1; null where not measured.';
COMMENT ON COLUMN removal_order.accuracy_after IS 'Accuracy on the calibration after everything went, 0 to 1; null where not measured.';

CREATE OR REPLACE VIEW removals AS
WITH seen AS (
    SELECT model, calibration, selector, removed, unit, max(nullif(n_samples, 0)) AS n FROM relevance GROUP BY ALL
),
steps AS (
    SELECT *, count(*) FILTER (donor IS NULL) OVER (PARTITION BY model, calibration, selector, removed ORDER BY position
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gone
    FROM plans
),
measured AS (  -- what was chosen may have been measured on fewer samples than the model before, which goes beside every unit
    SELECT p.model, p.calibration, p.selector, p.removed, p.position,
        coalesce(max(s.n) FILTER (s.selector <> 'base'), max(s.n)) AS n_before,
        coalesce(max(s.n) FILTER (s.selector <> 'base' AND s.unit = p.unit), max(s.n) FILTER (s.unit = p.unit)) AS n_after
    FROM steps AS p JOIN seen AS s ON s.model = p.model AND s.calibration = p.calibration AND s.removed = p.gone
        AND (s.selector = p.selector OR (s.selector = 'base' AND p.gone = 0))
    GROUP BY ALL
),
searched AS (  -- a search chooses on what it does not hold back
    SELECT model, calibration, selector, removed, any_value(n_samples) AS n_search FROM searches
    WHERE stage = 'winner' AND removed > 0 GROUP BY ALL
)
SELECT p.* EXCLUDE (gone),
    if(accuracy_before IS NULL, NULL, coalesce(n_search, n_before)) AS n_before,
    root(accuracy_before * (1 - accuracy_before) / coalesce(n_search, n_before)) AS before_stderr,
    if(accuracy_after IS NULL, NULL, coalesce(n_search, n_after)) AS n_after,
    root(accuracy_after * (1 - accuracy_after) / coalesce(n_search, n_after)) AS after_stderr
FROM steps AS p LEFT JOIN measured USING (model, calibration, selector, removed, position)
LEFT JOIN searched USING (model, calibration, selector, removed);
COMMENT ON VIEW removals IS 'One row per plan and unit, as plans, with the samples behind its accuracies: a budget may let a unit leave early, and a search holds samples back.';
COMMENT ON COLUMN removals.n_before IS 'Calibration samples behind accuracy_before; null where nobody knows.';
COMMENT ON COLUMN removals.before_stderr IS 'Binomial standard error of accuracy_before.';
COMMENT ON COLUMN removals.n_after IS 'Calibration samples behind accuracy_after.';
COMMENT ON COLUMN removals.after_stderr IS 'Binomial standard error of accuracy_after.';

CREATE OR REPLACE VIEW variants AS
WITH told AS MATERIALIZED (FROM scores),
means AS MATERIALIZED (FROM kept_means),
own AS (
    SELECT model, calibration, selector, removed, recovery, healing,
        string_agg(task, ', ' ORDER BY task) AS own_tasks,
        string_agg(DISTINCT metric, ', ' ORDER BY metric) AS own_metric,
        -- accuracies and perplexities have no mean
        if(count(DISTINCT higher_is_better) = 1, avg(value), NULL) AS own_value,
        if(count(DISTINCT higher_is_better) = 1, mean_stderr(value, stderr), NULL) AS own_stderr,
        if(count(DISTINCT higher_is_better) = 1, avg(base_value), NULL) AS own_base,
        bool_and(at_chance) AS own_at_chance, sum(n_samples) AS own_samples
    FROM told WHERE own GROUP BY ALL
),
described AS (
    SELECT model, calibration, selector, removed, recovery, healing FROM told
    UNION SELECT model, calibration, selector, removed, recovery, healing FROM efficiency
),
placed AS (
    SELECT d.*, r.units, r.component, r.runs
    FROM described AS d LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
),
timed AS (  -- what was timed stands for all that cost the same; runs count where there is a patch at each
    SELECT p.model, p.calibration, p.selector, p.removed, p.recovery, p.healing, e.parameters_ratio, e.latency_ratio,
        e.latency_ratio_stderr, e.repeats,
        coalesce(e.timed, concat_ws('/', t.model, t.calibration, t.selector, 'removed=' || t.removed, t.recovery,
            t.healing)) AS timed
    FROM placed AS p
    JOIN placed AS t ON t.model = p.model AND t.removed = p.removed AND t.recovery = p.recovery
        AND t.component IS NOT DISTINCT FROM p.component AND (p.recovery = 'none' OR t.runs = p.runs)
    JOIN efficiency AS e ON e.model = t.model AND e.calibration = t.calibration AND e.selector = t.selector
        AND e.removed = t.removed AND e.recovery = t.recovery AND e.healing = t.healing
    QUALIFY row_number() OVER (
        PARTITION BY p.model, p.calibration, p.selector, p.removed, p.recovery, p.healing
        ORDER BY (t.calibration, t.selector) = (p.calibration, p.selector) DESC, t.healing = p.healing DESC,
            t.runs = p.runs DESC, t.calibration, t.selector, t.healing) = 1
)
SELECT d.* EXCLUDE (component, runs), own_tasks, own_metric, own_value, own_stderr, own_base, own_at_chance,
    k.kept AS own_kept, k.kept_stderr AS own_kept_stderr, own_samples, e.kept AS mean_kept,
    e.kept_stderr AS mean_kept_stderr, e.n_tasks, e.n_at_chance, texts, text_perplexity, text_perplexity_stderr,
    text_base, text_ratio, text_ratio_stderr, text_samples, parameters_ratio, latency_ratio, latency_ratio_stderr,
    repeats AS latency_repeats, timed
FROM placed AS d
LEFT JOIN own USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN (FROM means WHERE tasks_of = 'own') AS k USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN (FROM means WHERE tasks_of = 'all') AS e USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN general_texts USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN timed USING (model, calibration, selector, removed, recovery, healing);
COMMENT ON VIEW variants IS 'One row per variant: what it lacks, what it keeps of its own task and of all, how large and fast it is.';
COMMENT ON COLUMN variants.own_tasks IS 'The calibration''s own benchmark tasks.';
COMMENT ON COLUMN variants.own_metric IS 'Main metrics of the own tasks.';
COMMENT ON COLUMN variants.own_value IS 'Mean over the own tasks of the measured number; null where some are accuracies and others perplexities.';
COMMENT ON COLUMN variants.own_stderr IS 'Standard error of own_value.';
COMMENT ON COLUMN variants.own_base IS 'The base model''s number on the same tasks.';
COMMENT ON COLUMN variants.own_at_chance IS 'Whether the base model is at chance on all own tasks, so that there is nothing to keep; null where nobody knows.';
COMMENT ON COLUMN variants.own_kept IS 'Mean over the own tasks of the share kept, 1 = all; those at chance are not in it.';
COMMENT ON COLUMN variants.own_kept_stderr IS 'Standard error of own_kept.';
COMMENT ON COLUMN variants.own_samples IS 'Test documents of the own tasks.';
COMMENT ON COLUMN variants.mean_kept IS 'Mean over all tasks with an accuracy of the share kept, 1 = all; those at chance are not in it.';
COMMENT ON COLUMN variants.mean_kept_stderr IS 'Standard error of mean_kept.';
COMMENT ON COLUMN variants.n_tasks IS 'Number of tasks in mean_kept.';
COMMENT ON COLUMN variants.n_at_chance IS 'Number of tasks left out of it because the base model is at chance.';
COMMENT ON COLUMN variants.latency_repeats IS 'Number of timed repetitions behind latency_ratio.';
COMMENT ON COLUMN variants.timed IS 'Variant that parameters_ratio and latency_ratio were measured on: itself, or one of the same kind and number of units and, where a patch works at each, the same number of runs, with the same recovery or one that builds the model alike. Null where none was.';

CREATE OR REPLACE VIEW frontier AS
WITH measured AS MATERIALIZED (
    SELECT * FROM variants
    WHERE removed > 0 AND own_metric <> 'perplexity' AND own_value IS NOT NULL AND text_perplexity IS NOT NULL
),
told AS MATERIALIZED (FROM scores),
counted AS (
    SELECT model, removed, calibration, count(DISTINCT selector) AS selectors FROM measured GROUP BY ALL
),
sets AS (  -- of calibrations: all that at least so many selectors have
    SELECT model, removed, least, calibration, count(*) OVER (PARTITION BY model, removed, least) AS n
    FROM counted JOIN (SELECT DISTINCT model, removed, selectors AS least FROM counted) USING (model, removed)
    WHERE selectors >= least
),
whole AS (  -- pairs that were measured on all calibrations of a set
    SELECT model, removed, least, selector, recovery, healing, any_value(n) AS n
    FROM measured JOIN sets USING (model, removed, calibration)
    GROUP BY ALL HAVING count(*) = any_value(n)
),
worth AS (SELECT model, removed, least, sum(n) AS variants FROM whole GROUP BY ALL),
shared AS (  -- means compare over the same calibrations: those that keep the most variants in the comparison
    SELECT model, removed, calibration
    FROM sets JOIN (SELECT model, removed, max_by(least, (variants, least)) AS least FROM worth GROUP BY ALL)
        USING (model, removed, least)
),
read AS (  -- all read the same texts: the mean of each document first
    SELECT s.model, s.removed, s.selector, s.recovery, s.healing, s.task, avg(s.value) AS nll, count(*) AS n
    FROM benchmark_samples AS s
    JOIN (FROM told WHERE general_text) AS g USING (model, calibration, selector, removed, recovery, healing, task)
    JOIN shared USING (model, removed, calibration)
    WHERE s.metric = 'nll'
    GROUP BY s.model, s.removed, s.selector, s.recovery, s.healing, s.task, s.sample
),
tested AS (  -- draws of one calibration are tested on the same documents
    SELECT model, removed, selector, recovery, healing, sum(n) AS n_samples
    FROM (SELECT model, removed, selector, recovery, healing, task, max(n_samples) AS n
        FROM told JOIN shared USING (model, removed, calibration) WHERE own GROUP BY ALL)
    GROUP BY ALL
),
together AS (
    SELECT e.model, e.removed, e.selector, e.recovery, e.healing, sum(value_covariance) AS covariance
    FROM shared_errors AS e JOIN shared AS x USING (model, removed, calibration)
    JOIN shared AS y ON y.model = e.model AND y.removed = e.removed AND y.calibration = e.other_calibration
    GROUP BY ALL
),
texts AS (
    SELECT model, removed, selector, recovery, healing, mean_stderr(n, stderr) AS nll_stderr, min(n) AS n_read
    FROM (SELECT * EXCLUDE (nll, n), stddev_samp(nll) / sqrt(count(*)) AS stderr, min(n) AS n FROM read GROUP BY ALL)
    GROUP BY ALL
),
means AS (
    SELECT model, removed, selector, recovery, healing,
        avg(own_value) AS accuracy,
        if(count(own_stderr) = count(*), root(sum(own_stderr ** 2) + 2 * coalesce(any_value(covariance), 0)) / count(*),
            NULL) AS accuracy_stderr,
        avg(own_base) AS accuracy_base,
        exp(avg(ln(text_perplexity))) AS perplexity,
        -- of documents that are not known at most this: their errors go together
        exp(avg(ln(text_perplexity))) * if(any_value(n_read) = count(*) AND count(*) > 1, any_value(nll_stderr),
            joint_stderr(text_perplexity, text_perplexity_stderr / text_perplexity)) AS perplexity_stderr,
        exp(avg(ln(text_base))) AS perplexity_base,
        count(*) AS n_calibrations, any_value(t.n_samples) AS n_samples
    FROM measured JOIN shared USING (model, removed, calibration)
    LEFT JOIN texts USING (model, removed, selector, recovery, healing)
    LEFT JOIN together USING (model, removed, selector, recovery, healing)
    LEFT JOIN tested AS t USING (model, removed, selector, recovery, healing)
    GROUP BY ALL
),
comparable AS (  -- a repair that was tried on some of them only has another mean
    SELECT * FROM means QUALIFY n_calibrations = max(n_calibrations) OVER (PARTITION BY model, removed)
)
SELECT *, NOT EXISTS (
    FROM comparable AS o WHERE o.model = c.model AND o.removed = c.removed
        AND o.accuracy >= c.accuracy AND o.perplexity <= c.perplexity
        AND (o.accuracy > c.accuracy OR o.perplexity < c.perplexity)
) AS best
FROM comparable AS c;
COMMENT ON VIEW frontier IS 'One row per model, size, selector and repair: own accuracy against perplexity of general text, means over the calibrations of tasks.';
COMMENT ON COLUMN frontier.accuracy IS 'Mean over the calibrations of the accuracy on their own tasks, 0 to 1.';
COMMENT ON COLUMN frontier.accuracy_stderr IS 'Standard error of accuracy over distinct test documents, which draws of one calibration share; the choice of calibration samples is not in it.';
COMMENT ON COLUMN frontier.accuracy_base IS 'The base model''s mean on the same tasks.';
COMMENT ON COLUMN frontier.perplexity IS 'Perplexity of general text (see general_texts); geometric mean over texts and calibrations.';
COMMENT ON COLUMN frontier.perplexity_stderr IS 'Standard error of perplexity over documents, which all calibrations share: of the mean over calibrations of each (of equal weight).';
COMMENT ON COLUMN frontier.perplexity_base IS 'The base model''s perplexity on the same texts.';
COMMENT ON COLUMN frontier.n_calibrations IS 'Calibrations in the means: of the size, those that keep the most variants comparable. Pairs not measured on all of them are left out.';
COMMENT ON COLUMN frontier.n_samples IS 'Distinct test documents behind accuracy, over all calibrations.';
COMMENT ON COLUMN frontier.best IS 'Whether no other pair of this size has both a higher accuracy and a lower perplexity (one may be equal).';

CREATE OR REPLACE VIEW answers AS
WITH known AS MATERIALIZED (
    SELECT v.*, concat_ws('/', model, calibration, selector, 'removed=' || removed, recovery, healing) AS variant,
        -- half a layer is half as much
        v.removed / if(coalesce(r.component, 'layer') = 'layer', 1, 2) AS layers
    FROM variants AS v LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
    WHERE removed > 0
),
kept AS MATERIALIZED (FROM kept_means WHERE removed > 0),
recipes AS (
    SELECT model, selector, removed, recovery, healing, layers, count(*) AS n_calibrations,
        avg(k.kept) AS kept, sum(k.kept_stderr ** 2) AS variance, count(k.kept_stderr) AS n_stderr,
        if(count(k.kept_above_chance) = count(*), avg(k.kept_above_chance), NULL) AS kept_above_chance,
        sum(k.kept_above_chance_stderr ** 2) AS variance_above_chance,
        count(k.kept_above_chance_stderr) AS n_stderr_above_chance,
        -- all of them read the same texts, and most were timed as one, so these errors go together
        exp(avg(ln(text_ratio))) AS text_ratio,
        exp(avg(ln(text_ratio))) * joint_stderr(text_ratio, text_ratio_stderr / text_ratio) AS text_ratio_stderr,
        max(text_samples) AS text_samples, avg(parameters_ratio) AS parameters_ratio,
        avg(latency_ratio) AS latency_ratio, joint_stderr(latency_ratio, latency_ratio_stderr) AS latency_ratio_stderr,
        min(latency_repeats) AS latency_repeats, list(variant ORDER BY calibration) AS variants
    FROM known JOIN (FROM kept WHERE tasks_of = 'own' AND kept IS NOT NULL) AS k
        USING (model, calibration, selector, removed, recovery, healing)
    GROUP BY ALL
),
whole AS (  -- a mean over fewer calibrations is another question
    FROM recipes QUALIFY n_calibrations > 1 AND n_calibrations = max(n_calibrations) OVER (PARTITION BY model)
),
together AS (
    SELECT model, selector, removed, recovery, healing, sum(kept_covariance) AS covariance,
        sum(kept_above_chance_covariance) AS covariance_above_chance
    FROM shared_errors GROUP BY ALL
),
tested AS (  -- a document is wrong in all draws of a calibration at once, and counts once
    SELECT model, selector, removed, recovery, healing, max(kept_step) AS kept_step,
        max(kept_above_chance_step) AS kept_above_chance_step, sum(n_samples) AS n_samples
    FROM (SELECT model, selector, removed, recovery, healing, tasks, sum(kept_step) AS kept_step,
            sum(kept_above_chance_step) AS kept_above_chance_step, max(n_samples) AS n_samples
        FROM kept WHERE tasks_of = 'own' AND kept IS NOT NULL GROUP BY ALL)
    GROUP BY ALL
)
SELECT 'task' AS question, model, calibration AS name, k.tasks, k.n_tasks, k.n_at_chance, selector, removed, recovery,
    healing, layers, units, k.* LIKE 'kept%', k.n_samples, text_ratio, text_ratio_stderr, text_samples,
    o.n_tasks AS n_others, o.kept AS others_kept, o.kept_stderr AS others_kept_stderr, o.n_samples AS others_samples,
    parameters_ratio, latency_ratio, latency_ratio_stderr, latency_repeats, [variant] AS variants,
    coalesce(own_at_chance, false) AS at_chance
FROM known JOIN (FROM kept WHERE tasks_of = 'own') AS k USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN (FROM kept WHERE tasks_of = 'others' AND kept IS NOT NULL) AS o
    USING (model, calibration, selector, removed, recovery, healing)
WHERE k.kept IS NOT NULL OR own_at_chance
UNION ALL BY NAME
SELECT 'model' AS question, model, '' AS name, '' AS tasks, k.n_tasks, k.n_at_chance, selector, removed, recovery, healing,
    layers, units, k.* LIKE 'kept%', k.n_samples, text_ratio, text_ratio_stderr, text_samples, parameters_ratio,
    latency_ratio, latency_ratio_stderr, latency_repeats, [variant] AS variants, false AS at_chance
FROM known JOIN (FROM kept WHERE tasks_of = 'all') AS k USING (model, calibration, selector, removed, recovery, healing)
WHERE k.n_tasks > 1 QUALIFY k.n_tasks = max(k.n_tasks) OVER (PARTITION BY model)
UNION ALL BY NAME
SELECT 'recipe' AS question, model, '' AS name, '' AS tasks, n_calibrations AS n_tasks, 0 AS n_at_chance, selector,
    removed, recovery, healing, layers, kept,
    if(n_stderr = n_calibrations, root(variance + 2 * coalesce(covariance, 0)) / n_calibrations, NULL) AS kept_stderr,
    t.kept_step / n_calibrations AS kept_step, kept_above_chance,
    if(n_stderr_above_chance = n_calibrations, root(variance_above_chance
        + 2 * coalesce(covariance_above_chance, 0)) / n_calibrations, NULL) AS kept_above_chance_stderr,
    t.kept_above_chance_step / n_calibrations AS kept_above_chance_step, t.n_samples, text_ratio, text_ratio_stderr,
    text_samples, parameters_ratio, latency_ratio, latency_ratio_stderr, latency_repeats, variants, false AS at_chance
FROM whole JOIN tested AS t USING (model, selector, removed, recovery, healing)
LEFT JOIN together USING (model, selector, removed, recovery, healing);
COMMENT ON VIEW answers IS 'One row per question of which model to take and variant that answers it: what it keeps of a calibration''s own tasks, of all tasks in one model, and of all calibrations'' own tasks by one recipe (a selector and a repair, with a plan for each).';
COMMENT ON COLUMN answers.question IS 'task, model or recipe.';
COMMENT ON COLUMN answers.name IS 'Calibration of a question about a task; empty for the others.';
COMMENT ON COLUMN answers.n_tasks IS 'Number of tasks in the mean; of a recipe number of calibrations.';
COMMENT ON COLUMN answers.layers IS 'Layers removed; half a layer counts a half.';
COMMENT ON COLUMN answers.n_samples IS 'Distinct test documents behind the share.';
COMMENT ON COLUMN answers.n_others IS 'Number of other tasks with an accuracy, but for those at chance; questions about a task only.';
COMMENT ON COLUMN answers.others_kept IS 'Mean over them of the share kept.';
COMMENT ON COLUMN answers.others_kept_stderr IS 'Standard error of others_kept.';
COMMENT ON COLUMN answers.others_samples IS 'Test documents of the other tasks.';
COMMENT ON COLUMN answers.variants IS 'The variant, of a recipe one for each calibration, as `make export` has it.';
COMMENT ON COLUMN answers.at_chance IS 'Whether the base model is at chance on all own tasks, so that there is nothing to keep.';

-- The answers held against what must be kept: `share`, counted from zero or from chance; whether it is enough, and general
-- text spared; whether that is certain, of all that answer the question; and the place among them. The smallest comes first;
-- of equally small ones those that are certain, of these the one that is best on general text, then the one that keeps most,
-- then the one with less done to it (a healing of which no step was better is what it began from). Where none keeps enough,
-- the one that keeps most.
CREATE OR REPLACE MACRO answered(keep, text_at_most := NULL, counted_from := 'zero') AS TABLE
WITH counted AS (
    SELECT *, if(counted_from = 'chance', kept_above_chance, kept) AS share,
        if(counted_from = 'chance', kept_above_chance_stderr, kept_stderr) AS share_stderr,
        if(counted_from = 'chance', kept_above_chance_step, kept_step) AS share_step,
        count(*) OVER asked AS n_tried
    FROM answers WINDOW asked AS (PARTITION BY model, question, name)
),
judged AS (
    SELECT * EXCLUDE (share_step), certain(share - keep, share_stderr, share_step, n_tried) AS certain,
        coalesce(share >= keep AND (text_at_most IS NULL OR text_ratio <= text_at_most), false) AS kept_enough
    FROM counted
)
SELECT *, row_number() OVER (
    PARTITION BY model, question, name
    ORDER BY kept_enough DESC, if(kept_enough, layers, 0) DESC, kept_enough AND coalesce(certain, false) DESC,
        if(kept_enough, coalesce(text_ratio, 'inf'::DOUBLE), 0), share DESC NULLS LAST, healing = 'none' DESC,
        recovery = 'none' DESC, variants) AS place
FROM judged;

CREATE OR REPLACE VIEW disagreements AS
SELECT model, calibration, component, layer, unit,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, accuracy_rank,
    cosine, cosine_low, cosine_high, cosine_samples, cosine_rank,
    accuracy_rank - cosine_rank AS rank_difference,
    count(*) OVER (PARTITION BY model, calibration, component) AS n_units
FROM relevance_wide WHERE accuracy IS NOT NULL AND cosine IS NOT NULL;
COMMENT ON VIEW disagreements IS 'One row per unit scored by both metrics: how far apart accuracy and cosine place it.';
COMMENT ON COLUMN disagreements.rank_difference IS 'accuracy_rank - cosine_rank: positive = accuracy finds the unit more relevant than cosine does.';
COMMENT ON COLUMN disagreements.n_units IS 'Number of units ranked.';

CREATE OR REPLACE VIEW search_results AS
WITH ended AS (
    SELECT model, calibration, selector, strategy, removed,
        any_value(units) AS units,
        any_value(loss) FILTER (stage = 'winner') AS search_loss,
        any_value(n_samples) FILTER (stage = 'winner') AS n_search,
        any_value(COLUMNS(['loss', 'loss_stderr', 'difference', 'difference_stderr'])) FILTER (stage = 'held back'),
        any_value(n_samples) FILTER (stage = 'held back') AS n_held_back
    FROM searches WHERE stage IN ('winner', 'held back') GROUP BY ALL
)
SELECT e.*, c.evaluations, c.sets, c.layer_tokens
FROM ended AS e, LATERAL (
    SELECT sum(s.n_new) AS evaluations, count(DISTINCT s.units) AS sets, sum(s.layer_tokens) AS layer_tokens
    FROM searches AS s
    WHERE s.model = e.model AND s.calibration = e.calibration AND s.selector = e.selector AND s.strategy = e.strategy
        AND s.stage <> 'held back'
        -- An evolutionary search begins anew for every size, the others build larger sets from smaller ones.
        AND (s.removed = e.removed OR (s.removed < e.removed AND e.strategy <> 'evolutionary' AND s.stage <> 'winner'))
) AS c;
COMMENT ON VIEW search_results IS 'One row per search, strategy and size: what it ended with, what that is worth on samples it never saw, and what it cost, the smaller sizes on the way included.';
COMMENT ON COLUMN search_results.search_loss IS 'Mean loss of the set on the samples it was chosen on: too low, as of any best of many.';
COMMENT ON COLUMN search_results.n_search IS 'Number of these samples.';
COMMENT ON COLUMN search_results.loss IS 'Mean loss of the set on the samples held back.';
COMMENT ON COLUMN search_results.n_held_back IS 'Number of these samples.';
COMMENT ON COLUMN search_results.evaluations IS 'Sets times samples that the strategy asked for, each once.';
COMMENT ON COLUMN search_results.sets IS 'Different sets that it asked about.';
