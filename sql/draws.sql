-- Replicates combined: means over the draws of a calibration or a selector, and the spread between
-- draws.

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
COMMENT ON COLUMN relevance_means.spread IS 'Standard deviation from one draw to another; null for a single draw.';
COMMENT ON COLUMN relevance_means.n_draws IS 'Number of draws with a score.';
COMMENT ON COLUMN relevance_means.n_samples IS 'Samples of all draws together; one sample may be in several draws.';
COMMENT ON COLUMN relevance_means.reason IS 'Why a draw has no score; null in the ordinary case.';
COMMENT ON COLUMN relevance_means.ci_low IS 'Lower end of the 95 % interval of score over draws, by Student''s t; null for a single draw.';
COMMENT ON COLUMN relevance_means.ci_high IS 'Upper end of the 95 % interval of score over draws.';

CREATE OR REPLACE VIEW score_means AS
WITH selectors AS (SELECT DISTINCT model, selector, replicate_of FROM plans WHERE replicate_of IS NOT NULL),
chosen AS (
    SELECT model, calibration, selector, removed, coalesce(any_value(repair), 'none') AS chosen_repair
    FROM plans GROUP BY ALL
),
drawn_repairs AS (  -- groups of replicates with at least one plan that was chosen with a repair
    SELECT r.model, coalesce(c.replicate_of, r.calibration) AS calibration_group,
        coalesce(p.replicate_of, r.selector) AS selector_group, r.removed
    FROM chosen AS r LEFT JOIN calibrations AS c USING (model, calibration)
    LEFT JOIN selectors AS p USING (model, selector)
    GROUP BY ALL HAVING max(r.chosen_repair) FILTER (r.chosen_repair <> 'none') IS NOT NULL
),
taken AS (  -- every variant, and again each variant with the repair with which its plan was chosen
    FROM scores
    UNION ALL
    SELECT s.* REPLACE ('as chosen' AS repair)
    FROM scores AS s JOIN chosen AS r USING (model, calibration, selector, removed)
    LEFT JOIN calibrations AS c USING (model, calibration) LEFT JOIN selectors AS p USING (model, selector)
    WHERE s.healing = 'none' AND s.repair = r.chosen_repair
        AND (s.model, coalesce(c.replicate_of, s.calibration), coalesce(p.replicate_of, s.selector), s.removed)
            IN (FROM drawn_repairs)
),
drawn AS (
    SELECT s.* REPLACE (coalesce(c.replicate_of, s.calibration) AS calibration,
            coalesce(p.replicate_of, s.selector) AS selector, CASE WHEN isfinite(value) THEN value END AS value,
            CASE WHEN isfinite(kept) THEN kept END AS kept),
        s.calibration AS drawn_calibration, s.selector AS drawn_selector
    FROM taken AS s LEFT JOIN calibrations AS c USING (model, calibration) LEFT JOIN selectors AS p USING (model, selector)
    WHERE s.selector <> 'none' AND (c.replicate_of IS NOT NULL OR p.replicate_of IS NOT NULL)
),
-- The spread over calibrations is that of means over selectors, and the reverse: several draws of a
-- calibration do not count as several selectors.
averaged AS (
    SELECT model, calibration, selector, removed, repair, healing, task, drawn_calibration, drawn_selector,
        avg(value) AS value, avg(kept) AS kept
    FROM drawn WHERE value IS NOT NULL
    GROUP BY model, calibration, selector, removed, repair, healing, task,
        GROUPING SETS ((drawn_calibration), (drawn_selector))
),
spreads AS (
    SELECT model, calibration, selector, removed, repair, healing, task, drawn_selector IS NULL AS over_calibrations,
        count(*) AS n, var_samp(value) AS variance, var_samp(kept) AS kept_variance
    FROM averaged GROUP BY ALL
),
varied AS (
    SELECT model, calibration, selector, removed, repair, healing, task,
        max(n) FILTER (over_calibrations) AS n_calibrations, max(n) FILTER (NOT over_calibrations) AS n_selectors,
        sqrt(sum(variance)) AS spread, sqrt(sum(kept_variance)) AS kept_spread,
        sqrt(sum(t95(n) ** 2 * variance / n)) AS reach
    FROM spreads GROUP BY ALL
),
means AS (
    SELECT model, calibration, selector, removed, repair, healing, task, metric, higher_is_better, bool_and(own) AS own,
        max(chance) AS chance, any_value(base_value) AS base_value, any_value(base_stderr) AS base_stderr,
        any_value(n_samples) AS n_samples, avg(value) AS value, count(value) AS n_draws,
        joint_stderr(value, CASE WHEN value IS NOT NULL THEN stderr END) AS stderr, avg(kept) AS kept
    FROM drawn GROUP BY ALL
)
SELECT m.*, n_calibrations, n_selectors, spread, kept_spread, value - reach AS ci_low, value + reach AS ci_high
FROM means AS m LEFT JOIN varied USING (model, calibration, selector, removed, repair, healing, task);
COMMENT ON VIEW score_means IS 'One row per variant and task, with replicated calibrations and selectors combined: the mean over draws. Repair `as chosen`: each plan with the repair with which it was chosen, where any was.';
COMMENT ON COLUMN score_means.calibration IS 'Label of the calibration''s group, or its name without one.';
COMMENT ON COLUMN score_means.selector IS 'Label of the selector''s group, or its name without one.';
COMMENT ON COLUMN score_means.own IS 'Whether the task is the calibration''s own (see own_tasks).';
COMMENT ON COLUMN score_means.chance IS 'Accuracy of guessing on the task, where known, 0 to 1.';
COMMENT ON COLUMN score_means.base_value IS 'The base model''s score on the task.';
COMMENT ON COLUMN score_means.base_stderr IS 'Standard error of base_value.';
COMMENT ON COLUMN score_means.n_samples IS 'Number of test documents, the same for every draw.';
COMMENT ON COLUMN score_means.value IS 'Mean over draws of the measured number; infinite perplexities are left out.';
COMMENT ON COLUMN score_means.spread IS 'Standard deviation from one draw to another: of selectors (means over the calibrations), of calibrations (means over the selectors), or the root of the sum of both variances; null for a single draw.';
COMMENT ON COLUMN score_means.n_draws IS 'Number of variants in value: calibrations times selectors.';
COMMENT ON COLUMN score_means.n_calibrations IS 'Number of draws of the calibration among them.';
COMMENT ON COLUMN score_means.n_selectors IS 'Number of draws of the selector among them.';
COMMENT ON COLUMN score_means.stderr IS 'Standard error of one draw''s value over test documents, on average; draws share the documents. Null where one is unknown.';
COMMENT ON COLUMN score_means.kept IS 'Mean over draws of the share of the base model''s score that is left.';
COMMENT ON COLUMN score_means.kept_spread IS 'Standard deviation of kept from one draw to another, as spread.';
COMMENT ON COLUMN score_means.ci_low IS 'Lower end of the 95 % interval of value over draws: Student''s t over n_selectors and over n_calibrations, half widths added in squares; null for a single draw.';
COMMENT ON COLUMN score_means.ci_high IS 'Upper end of the 95 % interval of value over draws.';
