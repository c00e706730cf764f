-- Units: their relevance by every metric, the order in which they go, and what searching whole sets of them found.

CREATE OR REPLACE VIEW relevance_wide AS
WITH base AS (SELECT * FROM relevance WHERE selector = 'base' AND removed = 0),
scores AS (
    SELECT * FROM (SELECT model, calibration, component, layer, unit, metric, score FROM base)
    -- lamina lists every metric here; these two are read by other views.
    PIVOT (max(score) FOR metric IN ('accuracy', 'cosine'))
),
beside AS (
    SELECT model, calibration, component, layer, unit,
        max(ci_low) FILTER (metric = 'accuracy') AS accuracy_low,
        max(ci_high) FILTER (metric = 'accuracy') AS accuracy_high,
        max(n_samples) FILTER (metric = 'accuracy') AS accuracy_samples,
        max(reason) FILTER (metric = 'accuracy') AS accuracy_reason,
        max(ci_low) FILTER (metric = 'cosine') AS cosine_low,
        max(ci_high) FILTER (metric = 'cosine') AS cosine_high,
        max(n_samples) FILTER (metric = 'cosine') AS cosine_samples
    FROM base GROUP BY ALL
),
wide AS (SELECT * FROM scores JOIN beside USING (model, calibration, component, layer, unit))
SELECT *,
    -- Equals share the mean of their places, which is what Spearman's correlation needs.
    CASE WHEN accuracy IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY accuracy NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, accuracy) - 1) / 2 END AS accuracy_rank,
    CASE WHEN cosine IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY cosine NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, cosine) - 1) / 2 END AS cosine_rank
FROM wide;
COMMENT ON VIEW relevance_wide IS 'One row per unit of the base model and calibration, one column per metric (null where not measured).';
COMMENT ON COLUMN relevance_wide.accuracy_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_samples IS 'Number of samples behind accuracy.';
COMMENT ON COLUMN relevance_wide.accuracy_reason IS 'Why accuracy is null.';
COMMENT ON COLUMN relevance_wide.cosine_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_samples IS 'Number of samples behind cosine.';
COMMENT ON COLUMN relevance_wide.accuracy_rank IS 'Place by accuracy among units of the kind, 1 = least relevant, ties share a place.';
COMMENT ON COLUMN relevance_wide.cosine_rank IS 'Place by cosine among units of the kind, 1 = least relevant, ties share a place.';

CREATE OR REPLACE VIEW removal_order AS
WITH ordered AS (
    SELECT model, calibration, selector, removed,
        string_agg(unit, ' ' ORDER BY position) AS units,
        CASE WHEN count(DISTINCT split_part(unit, '.', 2)) FILTER (donor IS NULL) > 1 THEN 'both'
            ELSE coalesce(nullif(split_part(any_value(unit) FILTER (donor IS NULL), '.', 2), ''),
                if(any_value(unit) IS NULL, NULL, 'layer')) END AS component,
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
COMMENT ON COLUMN removal_order.component IS 'Kind of the units: layer, attention, mlp or both; null for a refused plan.';
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

CREATE OR REPLACE VIEW task_agreements AS
WITH placed AS (  -- equals share the mean of their places
    SELECT a.model, a.component, m.metric, a.calibration, a.unit,
        rank() OVER (PARTITION BY a.model, a.calibration, a.component, m.metric ORDER BY a.score)
            + (count(*) OVER (PARTITION BY a.model, a.calibration, a.component, m.metric, a.score) - 1) / 2 AS accuracy_rank,
        rank() OVER (PARTITION BY a.model, a.calibration, a.component, m.metric ORDER BY m.score)
            + (count(*) OVER (PARTITION BY a.model, a.calibration, a.component, m.metric, m.score) - 1) / 2 AS metric_rank
    FROM relevance AS a
    JOIN relevance AS m USING (model, calibration, selector, removed, unit)
    WHERE a.selector = 'base' AND a.removed = 0 AND a.metric = 'accuracy' AND m.metric <> 'accuracy'
        AND isfinite(a.score) AND isfinite(m.score)
)
SELECT model, component, metric, calibration, corr(accuracy_rank, metric_rank) AS spearman, count(*) AS n_units
FROM placed GROUP BY ALL HAVING count(*) > 2 AND isfinite(corr(accuracy_rank, metric_rank));
COMMENT ON VIEW task_agreements IS 'One row per kind of unit, metric and calibration of the base model: how the metric agrees with accuracy within the task, which is what a selector goes by.';
COMMENT ON COLUMN task_agreements.metric IS 'The metric that is compared with accuracy.';
COMMENT ON COLUMN task_agreements.spearman IS 'Rank correlation over all units, as measured: the noise of the samples makes it smaller. Null where a metric gives all units the same score.';
COMMENT ON COLUMN task_agreements.n_units IS 'Units that both metrics scored.';

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
        any_value(COLUMNS(['loss', 'loss_stderr'])) FILTER (stage = 'held back'),
        any_value(n_samples) FILTER (stage = 'held back') AS n_held_back
    FROM searches WHERE stage IN ('winner', 'held back') GROUP BY ALL
)
SELECT e.*, c.evaluations, c.sets, c.layer_tokens
FROM ended AS e, LATERAL (
    SELECT sum(s.n_new) AS evaluations, count(DISTINCT s.units) AS sets, sum(s.layer_tokens) AS layer_tokens
    FROM searches AS s
    WHERE s.model = e.model AND s.calibration = e.calibration AND s.selector = e.selector AND s.strategy = e.strategy
        AND s.stage <> 'held back' AND s.removed = e.removed
) AS c;
COMMENT ON VIEW search_results IS 'One row per search and size: what it ended with, what that is worth on samples it never saw, and what it cost; the unpruned model has removed = 0.';
COMMENT ON COLUMN search_results.search_loss IS 'Mean loss of the set on the samples it was chosen on: too low, as of any best of many.';
COMMENT ON COLUMN search_results.n_search IS 'Number of these samples.';
COMMENT ON COLUMN search_results.loss IS 'Mean loss of the set on the samples held back.';
COMMENT ON COLUMN search_results.n_held_back IS 'Number of these samples.';
COMMENT ON COLUMN search_results.evaluations IS 'Sets times samples that the search asked for, each once.';
COMMENT ON COLUMN search_results.sets IS 'Different sets that it asked about.';
