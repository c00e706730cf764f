-- All facts about each variant, which variants no other beats, and which one to take.

CREATE OR REPLACE VIEW main_timings AS SELECT * FROM efficiency WHERE main IS NOT FALSE;
COMMENT ON VIEW main_timings IS 'One row per variant without a healing, as efficiency, for the first prompt and batch of the configuration: the speed that cards, tables and variants name.';

CREATE OR REPLACE VIEW distinct_timings AS
WITH named AS (
    SELECT *, concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing) AS own FROM efficiency
),
described AS (
    SELECT e.* EXCLUDE (own) REPLACE (coalesce(timed, own) AS timed), own, r.component, r.composition,
        coalesce(r.runs, 0) AS runs
    FROM named AS e LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
)
SELECT * EXCLUDE (own),
    count(DISTINCT timed) OVER (PARTITION BY model, removed, repair, component, composition, runs, prompt, batch) AS n_alike
FROM described
QUALIFY row_number() OVER (PARTITION BY model, removed, repair, component, composition, prompt, batch, timed
    ORDER BY timed <> own, own) = 1;
COMMENT ON VIEW distinct_timings IS 'One row per timing, size, repair and composition of variants, as efficiency.';
COMMENT ON COLUMN distinct_timings.component IS 'Kind of the removed units, as in removal_order.';
COMMENT ON COLUMN distinct_timings.composition IS 'How many layers lack what, as in removal_order.';
COMMENT ON COLUMN distinct_timings.runs IS 'Runs of removed units; 0 where none is removed.';
COMMENT ON COLUMN distinct_timings.n_alike IS 'Number of timings that only the variant distinguishes: of this size, repair, composition and number of runs. More than one where layers differ in size or type.';

CREATE OR REPLACE VIEW variants AS
WITH told AS MATERIALIZED (FROM scores),
means AS MATERIALIZED (FROM kept_means),
own AS (
    SELECT model, calibration, selector, removed, repair, healing,
        string_agg(task, ', ' ORDER BY task) AS own_tasks,
        string_agg(DISTINCT metric, ', ' ORDER BY metric) AS own_metric,
        -- accuracies and perplexities cannot be averaged
        CASE WHEN count(DISTINCT higher_is_better) = 1 THEN avg(value) END AS own_value,
        CASE WHEN count(DISTINCT higher_is_better) = 1 THEN mean_stderr(value, stderr) END AS own_stderr,
        CASE WHEN count(DISTINCT higher_is_better) = 1 THEN avg(base_value) END AS own_base,
        bool_and(at_chance) AS own_at_chance, sum(n_samples) AS own_samples
    FROM told WHERE own GROUP BY ALL
),
described AS (
    SELECT model, calibration, selector, removed, repair, healing FROM told
    UNION SELECT model, calibration, selector, removed, repair, healing
    FROM main_timings ANTI JOIN told USING (model, calibration, selector, removed, repair)
),
placed AS (
    SELECT d.*, coalesce(r.layers, d.removed) AS layers, r.units
    FROM described AS d LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
),
timed AS (  -- a healing is merged into the weights, so the timing without it holds
    SELECT model, calibration, selector, removed, repair, parameters_ratio, latency_ratio, latency_ratio_stderr, repeats,
        coalesce(timed, concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing)) AS timed
    FROM main_timings
)
SELECT d.*, own_tasks, own_metric, own_value, own_stderr, own_base, own_at_chance,
    k.kept AS own_kept, k.kept_stderr AS own_kept_stderr, own_samples, e.kept AS mean_kept,
    e.kept_stderr AS mean_kept_stderr, e.n_tasks, e.n_at_chance, texts, text_perplexity, text_perplexity_stderr,
    text_base, text_ratio, text_ratio_stderr, text_samples, text_blocks, parameters_ratio, latency_ratio, latency_ratio_stderr,
    repeats AS latency_repeats, timed
FROM placed AS d
LEFT JOIN own USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN (FROM means WHERE tasks_of = 'own') AS k USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN (FROM means WHERE tasks_of = 'all') AS e USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN general_texts USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN timed USING (model, calibration, selector, removed, repair);
COMMENT ON VIEW variants IS 'One row per variant: what it lacks, what it keeps of its own task and of all, how large and fast it is.';
COMMENT ON COLUMN variants.layers IS 'Its size in layers: removed, or half of removed where all units are attentions or all are MLPs.';
COMMENT ON COLUMN variants.own_tasks IS 'The calibration''s own benchmark tasks.';
COMMENT ON COLUMN variants.own_metric IS 'Main metrics of the own tasks.';
COMMENT ON COLUMN variants.own_value IS 'Mean over the own tasks of the measured number; null where some are accuracies and others perplexities.';
COMMENT ON COLUMN variants.own_stderr IS 'Standard error of own_value.';
COMMENT ON COLUMN variants.own_base IS 'The base model''s score on the same tasks.';
COMMENT ON COLUMN variants.own_at_chance IS 'Whether the base model is at chance on all own tasks, so that there is nothing to keep; null where unknown.';
COMMENT ON COLUMN variants.own_kept IS 'Mean over the own tasks of the share kept, 1 = all; tasks at chance are left out.';
COMMENT ON COLUMN variants.own_kept_stderr IS 'Standard error of own_kept.';
COMMENT ON COLUMN variants.own_samples IS 'Test documents of the own tasks.';
COMMENT ON COLUMN variants.mean_kept IS 'Mean over all tasks with an accuracy of the share kept, 1 = all; tasks at chance are left out.';
COMMENT ON COLUMN variants.mean_kept_stderr IS 'Standard error of mean_kept.';
COMMENT ON COLUMN variants.n_tasks IS 'Number of tasks in mean_kept.';
COMMENT ON COLUMN variants.n_at_chance IS 'Number of tasks left out of it because the base model is at chance.';
COMMENT ON COLUMN variants.latency_repeats IS 'Number of timed repetitions of latency_ratio.';
COMMENT ON COLUMN variants.timed IS 'Variant that parameters_ratio and latency_ratio were measured on: itself, without its healing, or one whose layers have the same shapes and types. Null where none was measured.';

CREATE OR REPLACE VIEW frontier AS
WITH measured AS MATERIALIZED (
    SELECT * FROM variants
    WHERE selector <> 'none' AND own_metric <> 'perplexity' AND own_value IS NOT NULL AND text_perplexity IS NOT NULL
),
told AS MATERIALIZED (FROM scores),
counted AS (
    SELECT model, removed, calibration, count(DISTINCT selector) AS selectors FROM measured GROUP BY ALL
),
sets AS (  -- sets of calibrations: those that at least `least` selectors have
    SELECT model, removed, least, calibration, count(*) OVER (PARTITION BY model, removed, least) AS n
    FROM counted JOIN (SELECT DISTINCT model, removed, selectors AS least FROM counted) USING (model, removed)
    WHERE selectors >= least
),
whole AS (  -- pairs that were measured on all calibrations of a set
    SELECT model, removed, least, selector, repair, healing, any_value(n) AS n
    FROM measured JOIN sets USING (model, removed, calibration)
    GROUP BY ALL HAVING count(*) = any_value(n)
),
worth AS (SELECT model, removed, least, sum(n) AS variants FROM whole GROUP BY ALL),
shared AS (  -- means are compared over the same calibrations: those that keep the most variants comparable
    SELECT model, removed, calibration
    FROM sets JOIN (SELECT model, removed, max_by(least, (variants, least)) AS least FROM worth GROUP BY ALL)
        USING (model, removed, least)
),
read AS (  -- all variants read the same texts, so each document is averaged first
    SELECT s.model, s.removed, s.selector, s.repair, s.healing, s.task, avg(s.value) AS nll, count(*) AS n
    FROM benchmark_samples AS s
    JOIN (FROM told WHERE general_text) AS g USING (model, calibration, selector, removed, repair, healing, task)
    JOIN shared USING (model, removed, calibration)
    WHERE s.metric = 'nll'
    GROUP BY s.model, s.removed, s.selector, s.repair, s.healing, s.task, s.sample
),
tested AS (  -- draws of one calibration share their test documents
    SELECT model, removed, selector, repair, healing, sum(n) AS n_samples
    FROM (SELECT model, removed, selector, repair, healing, task, max(n_samples) AS n
        FROM told JOIN shared USING (model, removed, calibration) WHERE own GROUP BY ALL)
    GROUP BY ALL
),
together AS (
    SELECT e.model, e.removed, e.selector, e.repair, e.healing, sum(value_covariance) AS covariance
    FROM shared_errors AS e JOIN shared AS x USING (model, removed, calibration)
    JOIN shared AS y ON y.model = e.model AND y.removed = e.removed AND y.calibration = e.other_calibration
    GROUP BY ALL
),
texts AS (
    SELECT model, removed, selector, repair, healing, mean_stderr(n, stderr) AS nll_stderr, min(n) AS n_read
    FROM (SELECT * EXCLUDE (nll, n), stddev_samp(nll) / sqrt(count(*)) AS stderr, min(n) AS n FROM read GROUP BY ALL)
    GROUP BY ALL
),
means AS (
    SELECT model, removed, layers, selector, repair, healing,
        avg(own_value) AS accuracy,
        CASE WHEN count(own_stderr) = count(*)
            THEN root(sum(own_stderr ** 2) + 2 * coalesce(any_value(covariance), 0)) / count(*) END AS accuracy_stderr,
        avg(own_base) AS accuracy_base,
        exp(avg(ln(text_perplexity))) AS perplexity,
        -- without documents this is an upper bound, because the errors are correlated
        exp(avg(ln(text_perplexity))) * CASE
            WHEN any_value(n_read) = count(*) AND count(*) > 1 THEN any_value(nll_stderr)
            ELSE joint_stderr(text_perplexity, text_perplexity_stderr / text_perplexity)
        END AS perplexity_stderr,
        exp(avg(ln(text_base))) AS perplexity_base,
        count(*) AS n_calibrations, any_value(t.n_samples) AS n_samples
    FROM measured JOIN shared USING (model, removed, calibration)
    LEFT JOIN texts USING (model, removed, selector, repair, healing)
    LEFT JOIN together USING (model, removed, selector, repair, healing)
    LEFT JOIN tested AS t USING (model, removed, selector, repair, healing)
    GROUP BY ALL
),
comparable AS (  -- a repair tried on only some of the calibrations has a mean over others than the rest
    SELECT * FROM means QUALIFY n_calibrations = max(n_calibrations) OVER (PARTITION BY model, removed)
)
SELECT *, NOT EXISTS (
    FROM comparable AS o WHERE o.model = c.model AND o.removed = c.removed AND o.layers = c.layers
        AND o.accuracy >= c.accuracy AND o.perplexity <= c.perplexity
        AND (o.accuracy > c.accuracy OR o.perplexity < c.perplexity)
) AS best
FROM comparable AS c;
COMMENT ON VIEW frontier IS 'One row per model, size, selector and repair: own accuracy against perplexity of general text, means over the calibrations of tasks.';
COMMENT ON COLUMN frontier.layers IS 'The size in layers: units that are all attentions or all MLPs count half.';
COMMENT ON COLUMN frontier.accuracy IS 'Mean over the calibrations of the accuracy on their own tasks, 0 to 1.';
COMMENT ON COLUMN frontier.accuracy_stderr IS 'Standard error of accuracy over distinct test documents, which draws of one calibration share; the choice of calibration samples is not in it.';
COMMENT ON COLUMN frontier.accuracy_base IS 'The base model''s mean on the same tasks.';
COMMENT ON COLUMN frontier.perplexity IS 'Perplexity of general text (see general_texts); geometric mean over texts and calibrations.';
COMMENT ON COLUMN frontier.perplexity_stderr IS 'Standard error of perplexity over documents, which all calibrations share: first the mean over calibrations of each document, then the error over documents of equal weight.';
COMMENT ON COLUMN frontier.perplexity_base IS 'The base model''s perplexity on the same texts.';
COMMENT ON COLUMN frontier.n_calibrations IS 'Calibrations in the means: for each size, those that keep the most variants comparable. Pairs that were not measured on all of them are left out.';
COMMENT ON COLUMN frontier.n_samples IS 'Distinct test documents of accuracy, over all calibrations.';
COMMENT ON COLUMN frontier.best IS 'Whether no other pair of this size is better in accuracy or perplexity and at least equal in the other.';

-- Answers are smaller models, so plans that only move layers (size 0 and below) are left out. A repair
-- that hurt on held-out documents of the calibration is never an answer; a recipe then has no repair
-- there.
CREATE OR REPLACE VIEW answers AS
WITH measured AS MATERIALIZED (
    SELECT v.*, concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing) AS variant,
        coalesce(r.component, 'layer') AS component, coalesce(healing = 'none' AND p.hurts, false) AS hurt
    FROM variants AS v LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
    LEFT JOIN (SELECT DISTINCT model, calibration, selector, removed, repair, hurts FROM patches WHERE hurts) AS p
        USING (model, calibration, selector, removed, repair)
    WHERE removed > 0
),
known AS (SELECT * EXCLUDE (hurt) FROM measured WHERE NOT hurt),
applied AS (
    SELECT a.repair AS recipe, k.* FROM measured AS a JOIN known AS k USING (model, calibration, selector, removed, healing)
    WHERE k.repair = CASE WHEN a.hurt THEN 'none' ELSE a.repair END
),
kept AS MATERIALIZED (FROM kept_means WHERE removed > 0),
recipes AS (
    SELECT model, selector, removed, recipe AS repair, healing, any_value(component) AS component, layers,
        count(*) AS n_calibrations,
        avg(k.kept) AS kept, sum((k.kept_stderr - k.kept_luck) ** 2) AS variance, count(k.kept_stderr) AS n_stderr,
        avg(k.kept_luck) AS kept_luck, max(k.kept_reason) AS kept_reason,
        CASE WHEN count(k.kept_above_chance) = count(*) THEN avg(k.kept_above_chance) END AS kept_above_chance,
        sum((k.kept_above_chance_stderr - k.kept_above_chance_luck) ** 2) AS variance_above_chance,
        avg(k.kept_above_chance_luck) AS kept_above_chance_luck,
        count(k.kept_above_chance_stderr) AS n_stderr_above_chance,
        max(text_ratio) AS text_ratio, arg_max_null(text_ratio_stderr, text_ratio) AS text_ratio_stderr,
        max(text_samples) AS text_samples, max(text_blocks) AS text_blocks, avg(parameters_ratio) AS parameters_ratio,
        -- most of them share a timing, so their errors are correlated
        avg(latency_ratio) AS latency_ratio, joint_stderr(latency_ratio, latency_ratio_stderr) AS latency_ratio_stderr,
        min(latency_repeats) AS latency_repeats, list(variant ORDER BY calibration) AS variants
    FROM applied JOIN (FROM kept WHERE tasks_of = 'own' AND kept IS NOT NULL) AS k
        USING (model, calibration, selector, removed, repair, healing)
    GROUP BY ALL
),
whole AS (  -- a mean over fewer calibrations answers another question
    FROM recipes QUALIFY n_calibrations > 1 AND n_calibrations = max(n_calibrations) OVER (PARTITION BY model)
),
together AS (
    SELECT model, selector, removed, repair, healing, sum(kept_covariance) AS covariance,
        sum(kept_above_chance_covariance) AS covariance_above_chance
    FROM shared_errors GROUP BY ALL
),
tested AS (  -- the draws of a calibration share their documents, so each document counts once
    SELECT model, selector, removed, repair, healing, max(kept_step) AS kept_step,
        max(kept_above_chance_step) AS kept_above_chance_step, sum(n_samples) AS n_samples
    FROM (SELECT model, selector, removed, repair, healing, tasks, sum(kept_step) AS kept_step,
            sum(kept_above_chance_step) AS kept_above_chance_step, max(n_samples) AS n_samples
        FROM kept WHERE tasks_of = 'own' AND kept IS NOT NULL GROUP BY ALL)
    GROUP BY ALL
)
SELECT 'task' AS question, model, calibration AS name, k.tasks, k.n_tasks, k.n_at_chance, selector, removed, repair,
    healing, component, layers, units, own_value AS score, own_base AS base_score, k.* LIKE 'kept%', k.n_samples,
    text_ratio, text_ratio_stderr, text_samples, text_blocks, o.n_tasks AS n_others, o.kept AS others_kept,
    o.kept_stderr AS others_kept_stderr, o.n_samples AS others_samples,
    parameters_ratio, latency_ratio, latency_ratio_stderr, latency_repeats, [variant] AS variants,
    coalesce(own_at_chance, false) AS at_chance
FROM known JOIN (FROM kept WHERE tasks_of = 'own') AS k USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN (FROM kept WHERE tasks_of = 'others' AND kept IS NOT NULL) AS o
    USING (model, calibration, selector, removed, repair, healing)
WHERE k.kept IS NOT NULL OR own_at_chance
UNION ALL BY NAME
SELECT 'model' AS question, model, '' AS name, '' AS tasks, k.n_tasks, k.n_at_chance, selector, removed, repair, healing,
    component, layers, units, k.* LIKE 'kept%', k.n_samples, text_ratio, text_ratio_stderr, text_samples, text_blocks, parameters_ratio,
    latency_ratio, latency_ratio_stderr, latency_repeats, [variant] AS variants, false AS at_chance
FROM known JOIN (FROM kept WHERE tasks_of = 'all') AS k USING (model, calibration, selector, removed, repair, healing)
WHERE k.n_tasks > 1 QUALIFY k.n_tasks = max(k.n_tasks) OVER (PARTITION BY model)
UNION ALL BY NAME
SELECT 'recipe' AS question, model, '' AS name, '' AS tasks, n_calibrations AS n_tasks, 0 AS n_at_chance, selector,
    removed, repair, healing, component, layers, kept,
    CASE WHEN n_stderr = n_calibrations
        THEN root(variance + 2 * coalesce(covariance, 0)) / n_calibrations + kept_luck END AS kept_stderr,
    kept_luck, kept_reason, t.kept_step / n_calibrations AS kept_step, kept_above_chance,
    CASE WHEN n_stderr_above_chance = n_calibrations
        THEN root(variance_above_chance + 2 * coalesce(covariance_above_chance, 0)) / n_calibrations
            + kept_above_chance_luck END AS kept_above_chance_stderr,
    kept_above_chance_luck,
    t.kept_above_chance_step / n_calibrations AS kept_above_chance_step, t.n_samples, text_ratio, text_ratio_stderr,
    text_samples, text_blocks, parameters_ratio, latency_ratio, latency_ratio_stderr, latency_repeats, variants, false AS at_chance
FROM whole JOIN tested AS t USING (model, selector, removed, repair, healing)
LEFT JOIN together USING (model, selector, removed, repair, healing);
COMMENT ON VIEW answers IS 'One row per variant and question that it may answer: what it keeps of a calibration''s own tasks (task), of all tasks in one model (model), or of all calibrations'' own tasks by one recipe (recipe: a selector and a repair, with a plan for each calibration).';
COMMENT ON COLUMN answers.question IS 'task, model or recipe.';
COMMENT ON COLUMN answers.name IS 'The calibration of question task; empty for the others.';
COMMENT ON COLUMN answers.n_tasks IS 'Number of tasks in the mean; of a recipe, number of calibrations.';
COMMENT ON COLUMN answers.component IS 'Kind of the units: layer, attention, mlp or both.';
COMMENT ON COLUMN answers.score IS 'Mean over a calibration''s own tasks of the measured number (own_value of view variants); only for question task.';
COMMENT ON COLUMN answers.base_score IS 'The same of the base model.';
COMMENT ON COLUMN answers.n_samples IS 'Distinct test documents of the share.';
COMMENT ON COLUMN answers.n_others IS 'Number of other tasks with an accuracy, without those at chance; only for question task.';
COMMENT ON COLUMN answers.others_kept IS 'Mean over these tasks of the share kept.';
COMMENT ON COLUMN answers.others_kept_stderr IS 'Standard error of others_kept.';
COMMENT ON COLUMN answers.others_samples IS 'Test documents of the other tasks.';
COMMENT ON COLUMN answers.variants IS 'The variant, or of a recipe one for each calibration, as `make export` takes it.';
COMMENT ON COLUMN answers.at_chance IS 'Whether the base model is at chance on all own tasks, so that there is nothing to keep.';
