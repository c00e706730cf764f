-- How does relevance form in training?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_relevance_forms_in_training.sql
--
-- One row per checkpoint of a training, calibration, metric (accuracy, cosine) and layer.
-- share, n   what the whole checkpoint gets right on the calibration, of n samples
-- Empty where no model of this run is a checkpoint of a training (`checkpoints` of a model).
WITH whole AS (  -- what the checkpoint gets right with all its layers
    SELECT model, calibration, avg(coalesce(correct_norm, correct)::INT) AS share, count(*) AS n
    FROM sweeps WHERE selector = 'base' AND removed = 0 AND unit = 'none' AND correct IS NOT NULL GROUP BY ALL
)
SELECT m.series, m.step, r.calibration, r.metric, r.layer, r.score, r.ci_low, r.ci_high, r.n_samples, w.share, w.n
FROM relevance AS r
JOIN models AS m ON m.model = r.model
LEFT JOIN whole AS w ON w.model = r.model AND w.calibration = r.calibration
WHERE m.series IS NOT NULL AND r.selector = 'base' AND r.removed = 0 AND r.component = 'layer'
    AND r.metric IN ('accuracy', 'cosine')
ORDER BY m.series, r.calibration, r.metric, m.step, r.layer;
