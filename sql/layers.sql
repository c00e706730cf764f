-- Units: their relevance by every metric, the order of removal, and the results of searches over sets
-- of them.

CREATE OR REPLACE VIEW relevance_wide AS
WITH base AS (SELECT * FROM relevance WHERE selector = 'base' AND removed = 0),
scores AS (
    SELECT * FROM (SELECT model, calibration, component, layer, unit, metric, score FROM base)
    -- lamina inserts all metrics here. Other views read these two.
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
    -- Equal scores share their mean rank, as Spearman's correlation needs.
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
COMMENT ON COLUMN relevance_wide.accuracy_samples IS 'Number of samples that accuracy was measured on.';
COMMENT ON COLUMN relevance_wide.accuracy_reason IS 'Why accuracy is null.';
COMMENT ON COLUMN relevance_wide.cosine_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_samples IS 'Number of samples that cosine was measured on.';
COMMENT ON COLUMN relevance_wide.accuracy_rank IS 'Rank by accuracy among units of the kind, 1 = least relevant; ties share their mean rank.';
COMMENT ON COLUMN relevance_wide.cosine_rank IS 'Rank by cosine among units of the kind, 1 = least relevant; ties share their mean rank.';

CREATE OR REPLACE VIEW removal_order AS
WITH parted AS (  -- for an edit that removes nothing, the part is the rest of its name
    SELECT model, calibration, selector, removed, edit, regexp_extract(unit, '^\d+')::BIGINT AS layer,
        coalesce(nullif(regexp_replace(unit, '^\d+\.?', ''), ''), 'layer') AS part
    FROM plans WHERE unit IS NOT NULL
),
sublayers AS (  -- attention of layer l is 2 l, its MLP 2 l + 1
    SELECT DISTINCT model, calibration, selector, removed, unnest(CASE part
        WHEN 'attention' THEN [2 * layer] WHEN 'mlp' THEN [2 * layer + 1] ELSE [2 * layer, 2 * layer + 1] END) AS sublayer
    FROM parted WHERE edit IS NULL
),
run_starts AS (
    FROM sublayers QUALIFY sublayer - 1 IS DISTINCT FROM lag(sublayer) OVER (
        PARTITION BY model, calibration, selector, removed ORDER BY sublayer)
),
run_counts AS (SELECT model, calibration, selector, removed, count(*) AS runs FROM run_starts GROUP BY ALL),
lacking AS (  -- the units that each layer lacks
    SELECT model, calibration, selector, removed, layer, string_agg(part, '+' ORDER BY part) AS parts
    FROM parted GROUP BY ALL
),
part_counts AS (
    SELECT model, calibration, selector, removed, parts, count(*) AS n_layers FROM lacking GROUP BY ALL
),
compositions AS (
    SELECT model, calibration, selector, removed,
        string_agg(n_layers || ' x ' || parts, ', ' ORDER BY parts) AS composition
    FROM part_counts GROUP BY ALL
),
kinds AS (
    SELECT model, calibration, selector, removed, bool_or(part = 'layer') AS are_layers, min(part) AS part,
        count(DISTINCT part) AS n_kinds, count(*) AS n_units
    FROM parted WHERE edit IS NULL GROUP BY ALL
),
ordered AS (
    SELECT model, calibration, selector, removed,
        string_agg(unit, ' ' ORDER BY position) AS units,
        arg_min_null(accuracy_before, position) AS accuracy_before,
        arg_max_null(accuracy_after, position) AS accuracy_after,
        coalesce(any_value(repair), 'none') AS chosen_repair,
        any_value(refused) AS refused
    FROM plans GROUP BY ALL
)
SELECT o.model, o.calibration, o.selector, o.removed, units,
    -- with units: both, a sub-layer counts as a share of a layer, so there are more units than `removed`
    CASE WHEN units IS NULL THEN NULL WHEN are_layers IS NOT FALSE THEN 'layer'
        WHEN n_kinds > 1 OR n_units > o.removed THEN 'both' ELSE part END AS component,
    CASE WHEN units IS NULL THEN NULL WHEN are_layers IS FALSE AND n_kinds = 1 AND n_units = o.removed
        THEN o.removed / 2 ELSE o.removed END AS layers,
    CASE WHEN units IS NOT NULL THEN coalesce(runs, 0) END AS runs,
    composition, accuracy_before, accuracy_after, chosen_repair, refused
FROM ordered AS o
LEFT JOIN kinds USING (model, calibration, selector, removed)
LEFT JOIN run_counts USING (model, calibration, selector, removed)
LEFT JOIN compositions USING (model, calibration, selector, removed);
COMMENT ON VIEW removal_order IS 'One row per plan: its units in order of removal, in one string, and its size.';
COMMENT ON COLUMN removal_order.units IS 'Units separated by spaces, first removed first; 7-9x2 runs layers 7 to 9 twice, 7<>8 exchanges two layers, 7=math:7 takes a layer of the donor math. Null for a refused plan.';
COMMENT ON COLUMN removal_order.component IS 'Kind of the units: layer, attention, mlp or both (sub-layers, each counted by its share of a layer); null for a refused plan.';
COMMENT ON COLUMN removal_order.layers IS 'Size of the plan in layers: removed, or half of removed where all units are attentions or all are MLPs; null for a refused plan.';
COMMENT ON COLUMN removal_order.runs IS 'Runs of removed units: contiguous ones are one run, also 7.mlp and 8.attention; 0 where no unit is removed; null for a refused plan.';
COMMENT ON COLUMN removal_order.composition IS 'How many layers lack what, such as 2 x attention, 1 x attention+mlp. Null for a refused plan.';
COMMENT ON COLUMN removal_order.accuracy_before IS 'Accuracy on the calibration before the first removal, 0 to 1; null where not measured.';
COMMENT ON COLUMN removal_order.accuracy_after IS 'Accuracy on the calibration after the last removal, 0 to 1; null where not measured.';
COMMENT ON COLUMN removal_order.chosen_repair IS 'Repair with which the selector chose the plan; none without one.';

CREATE OR REPLACE VIEW removals AS
WITH seen AS (
    SELECT model, calibration, selector, removed, unit, max(nullif(n_samples, 0)) AS n FROM relevance GROUP BY ALL
),
steps AS (
    SELECT *, count(*) FILTER (edit IS NULL) OVER (PARTITION BY model, calibration, selector, removed ORDER BY position
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gone
    FROM plans
),
measured AS (
    SELECT p.model, p.calibration, p.selector, p.removed, p.position,
        coalesce(max(s.n) FILTER (s.selector <> 'base'), max(s.n)) AS n_before,
        coalesce(max(s.n) FILTER (s.selector <> 'base' AND s.unit = p.unit), max(s.n) FILTER (s.unit = p.unit)) AS n_after
    FROM steps AS p JOIN seen AS s ON s.model = p.model AND s.calibration = p.calibration AND s.removed = p.gone
        AND (s.selector = p.selector OR (s.selector = 'base' AND p.gone = 0))
    GROUP BY ALL
),
searched AS (  -- a search chooses on the samples that it does not hold back
    SELECT model, calibration, selector, removed, any_value(n_samples) AS n_search FROM searches
    WHERE stage = 'winner' AND strategy <> 'none' GROUP BY ALL
)
SELECT p.* EXCLUDE (gone),
    CASE WHEN accuracy_before IS NOT NULL THEN coalesce(n_search, n_before) END AS n_before,
    root(accuracy_before * (1 - accuracy_before) / coalesce(n_search, n_before)) AS before_stderr,
    CASE WHEN accuracy_after IS NOT NULL THEN coalesce(n_search, n_after) END AS n_after,
    root(accuracy_after * (1 - accuracy_after) / coalesce(n_search, n_after)) AS after_stderr
FROM steps AS p LEFT JOIN measured USING (model, calibration, selector, removed, position)
LEFT JOIN searched USING (model, calibration, selector, removed);
COMMENT ON VIEW removals IS 'One row per plan and unit, as plans, with the number of samples that its accuracies were measured on: a search holds samples back.';
COMMENT ON COLUMN removals.n_before IS 'Calibration samples that accuracy_before was measured on; null where unknown.';
COMMENT ON COLUMN removals.before_stderr IS 'Binomial standard error of accuracy_before.';
COMMENT ON COLUMN removals.n_after IS 'Calibration samples that accuracy_after was measured on.';
COMMENT ON COLUMN removals.after_stderr IS 'Binomial standard error of accuracy_after.';

CREATE OR REPLACE VIEW task_agreements AS
WITH placed AS (  -- equal scores share their mean rank
    SELECT a.model, a.component, m.metric, a.calibration, a.unit,
        rank() OVER (PARTITION BY a.model, a.calibration, a.component, m.metric ORDER BY a.score)
            + (count(*) OVER (PARTITION BY a.model, a.calibration, a.component, m.metric, a.score) - 1) / 2 AS accuracy_rank,
        rank() OVER (PARTITION BY a.model, a.calibration, a.component, m.metric ORDER BY m.score)
            + (count(*) OVER (PARTITION BY a.model, a.calibration, a.component, m.metric, m.score) - 1) / 2 AS metric_rank
    FROM relevance AS a
    JOIN relevance AS m USING (model, calibration, selector, removed, unit)
    WHERE a.selector = 'base' AND a.removed = 0 AND a.metric = 'accuracy' AND m.metric <> 'accuracy'
        AND isfinite(a.score) AND isfinite(m.score)
),
correlated AS (
    SELECT model, component, metric, calibration, corr(accuracy_rank, metric_rank) AS spearman, count(*) AS n_units
    FROM placed GROUP BY ALL HAVING count(*) > 2 AND isfinite(corr(accuracy_rank, metric_rank))
),
reached AS (  -- as if the units were a sample of many units [Bonett and Wright 2000]
    SELECT *, atanh(greatest(least(spearman, 0.999999), -0.999999)) AS z,
        CASE WHEN n_units > 4 THEN 1.959964 * sqrt((1 + spearman ** 2 / 2) / (n_units - 3)) END AS reach
    FROM correlated
)
SELECT model, component, metric, calibration, spearman,
    CASE WHEN reach > 0 THEN least(tanh(z - reach), spearman) END AS ci_low,
    CASE WHEN reach > 0 THEN greatest(tanh(z + reach), spearman) END AS ci_high, n_units
FROM reached;
COMMENT ON VIEW task_agreements IS 'One row per kind of unit, metric and calibration of the base model: how the metric agrees with accuracy within the task, which is all that a selector sees.';
COMMENT ON COLUMN task_agreements.metric IS 'The metric that is compared with accuracy.';
COMMENT ON COLUMN task_agreements.spearman IS 'Rank correlation over all units, as measured: the noise of the samples makes it smaller. Null where a metric gives all units the same score.';
COMMENT ON COLUMN task_agreements.ci_low IS 'Lower end of its 95 % interval, as if the units were a sample of many units [Bonett and Wright 2000]; null for fewer than five.';
COMMENT ON COLUMN task_agreements.ci_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN task_agreements.n_units IS 'Units that both metrics scored.';

CREATE OR REPLACE VIEW disagreements AS
SELECT model, calibration, component, layer, unit,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, accuracy_rank,
    cosine, cosine_low, cosine_high, cosine_samples, cosine_rank,
    accuracy_rank - cosine_rank AS rank_difference,
    count(*) OVER (PARTITION BY model, calibration, component) AS n_units
FROM relevance_wide WHERE accuracy IS NOT NULL AND cosine IS NOT NULL;
COMMENT ON VIEW disagreements IS 'One row per unit scored by both metrics: how far apart accuracy and cosine rank it.';
COMMENT ON COLUMN disagreements.rank_difference IS 'accuracy_rank - cosine_rank: positive = accuracy finds the unit more relevant than cosine does.';
COMMENT ON COLUMN disagreements.n_units IS 'Number of units ranked.';

CREATE OR REPLACE VIEW inner_units AS
WITH placed AS (
    SELECT *, row_number() OVER (PARTITION BY model, calibration, component ORDER BY layer) AS depth FROM disagreements
),
inside AS (FROM placed WHERE n_units < 8 OR depth BETWEEN 3 AND n_units - 2)
SELECT model, calibration, component, layer, unit,
    accuracy, accuracy_low, accuracy_high, accuracy_samples,
    cosine, cosine_low, cosine_high, cosine_samples,
    row_number() OVER (PARTITION BY model, calibration, component ORDER BY round(accuracy, 12), layer DESC) AS accuracy_rank,
    row_number() OVER (PARTITION BY model, calibration, component ORDER BY round(cosine, 12), layer DESC) AS cosine_rank,
    count(*) OVER (PARTITION BY model, calibration, component) AS n_units
FROM inside;
COMMENT ON VIEW inner_units IS 'One row per unit scored by both metrics, without the first and last two of eight or more, which every metric finds relevant [arXiv 2605.14075, section 4].';
COMMENT ON COLUMN inner_units.accuracy_rank IS 'Rank by accuracy among these units, 1 = least relevant, goes first; among equals the deeper one.';
COMMENT ON COLUMN inner_units.cosine_rank IS 'Rank by cosine among these units, 1 = least relevant, goes first; among equals the deeper one.';
COMMENT ON COLUMN inner_units.n_units IS 'Number of these units.';

CREATE OR REPLACE VIEW search_results AS
WITH ended AS (
    SELECT model, calibration, selector, strategy, removed,
        any_value(units) AS units,
        any_value(loss) FILTER (stage = 'winner') AS search_loss,
        any_value(n_samples) FILTER (stage = 'winner') AS n_search,
        any_value(COLUMNS(['loss', 'loss_stderr', 'change', 'change_stderr'])) FILTER (stage = 'held back'),
        any_value(n_samples) FILTER (stage = 'held back') AS n_held_back
    FROM searches WHERE stage IN ('winner', 'held back') GROUP BY ALL
)
SELECT e.*, b.search_loss AS search_loss_base, b.loss AS loss_base, c.evaluations, c.sets, c.layer_tokens
FROM ended AS e
LEFT JOIN (FROM ended WHERE strategy = 'none') AS b USING (model, calibration, selector), LATERAL (
    SELECT sum(s.n_new) AS evaluations, count(DISTINCT s.units) AS sets, sum(s.layer_tokens) AS layer_tokens
    FROM searches AS s
    WHERE s.model = e.model AND s.calibration = e.calibration AND s.selector = e.selector AND s.strategy = e.strategy
        AND s.stage <> 'held back' AND s.removed = e.removed
) AS c;
COMMENT ON VIEW search_results IS 'One row per search and size: the set that it found, the loss of that set on held-out samples, and what the search cost; the base model has strategy none.';
COMMENT ON COLUMN search_results.search_loss IS 'Mean loss of the set on the samples it was chosen on: too low, as for any best of many. Its samples are not those of loss: compare it with search_loss_base.';
COMMENT ON COLUMN search_results.n_search IS 'Number of these samples.';
COMMENT ON COLUMN search_results.search_loss_base IS 'Mean loss of the base model on the same samples as search_loss.';
COMMENT ON COLUMN search_results.loss IS 'Mean loss of the set on the samples held back. A portfolio holds none back: its loss is that on the last half of its judge documents, corrected for the choice by splitting these many times, choosing on one part and measuring on the other.';
COMMENT ON COLUMN search_results.n_held_back IS 'Number of these samples.';
COMMENT ON COLUMN search_results.loss_base IS 'Mean loss of the base model on the same samples as loss. It was not chosen, so there is nothing to correct.';
COMMENT ON COLUMN search_results.change IS 'Mean difference of the loss from that of the base model on the samples held back, below 0 for a gain: not the best of many there. Null for a portfolio.';
COMMENT ON COLUMN search_results.evaluations IS 'Sets times samples that the search evaluated, each counted once.';
COMMENT ON COLUMN search_results.sets IS 'Different sets that the search evaluated.';
