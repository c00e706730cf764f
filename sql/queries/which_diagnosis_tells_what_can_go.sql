-- Which diagnosis of the base model predicts what accuracy loses when a layer is removed?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_diagnosis_tells_what_can_go.sql
--
-- One row per diagnosis, measure and task, over the layers of a model; the strongest correlation
-- first. The measure `depth` is the layer's number: a measure that only rises or falls with depth
-- predicts no more than that.
-- pearson, spearman    correlation of the measure with the accuracy relevance of the layer
-- ci_low, ci_high      95 % interval of spearman (Fisher's z, variance after Bonett and Wright);
--                      null for three layers
-- n_layers, n_samples  number of layers with both numbers (a boundary counts as the layer after it),
--                      and fewest samples of any of them
-- Empty where no study lists a diagnosis of layers (void, probe or patching) together with accuracy relevance of the same model.
WITH measured AS (
    SELECT model, calibration, diagnosis, measure, layer, value, n_samples FROM diagnoses
    UNION ALL BY NAME
    SELECT DISTINCT model, 'none' AS calibration, 'none' AS diagnosis, 'depth' AS measure, layer, layer AS value
    FROM relevance WHERE model IN (SELECT model FROM diagnoses)
), paired AS (
    SELECT m.model, m.diagnosis, m.measure, r.calibration AS task, m.value AS measured, r.score AS relevance,
        least(m.n_samples, r.n_samples) AS samples
    FROM measured AS m
    JOIN relevance AS r ON r.model = m.model AND r.layer = m.layer AND m.calibration IN ('none', r.calibration)
    WHERE r.metric = 'accuracy' AND r.selector = 'base' AND r.removed = 0 AND r.component = 'layer'
        AND isfinite(m.value) AND isfinite(r.score)
), ranked AS (  -- ties share their mean rank
    SELECT *,
        rank() OVER (everything ORDER BY measured) + count(*) OVER (PARTITION BY everything_of, measured) / 2 AS x,
        rank() OVER (everything ORDER BY relevance) + count(*) OVER (PARTITION BY everything_of, relevance) / 2 AS y
    FROM (SELECT *, (model, diagnosis, measure, task) AS everything_of FROM paired)
    WINDOW everything AS (PARTITION BY everything_of)
), correlated AS (
    SELECT model, diagnosis, measure, task, corr(measured, relevance) AS pearson, corr(x, y) AS spearman,
        count(*) AS n_layers, min(samples) AS n_samples
    FROM ranked GROUP BY ALL
)
SELECT model, diagnosis, measure, task, round(pearson, 3) AS pearson, round(spearman, 3) AS spearman,
    round(tanh(z - reach), 3) AS ci_low, round(tanh(z + reach), 3) AS ci_high, n_layers, n_samples
FROM (
    SELECT *, atanh(greatest(least(spearman, 0.999999), -0.999999)) AS z,
        1.96 * sqrt((1 + spearman ^ 2 / 2) / nullif(greatest(n_layers - 3, 0), 0)) AS reach
    FROM correlated
)
WHERE isfinite(spearman)
ORDER BY model, task, abs(round(spearman, 3)) DESC, diagnosis, measure;
