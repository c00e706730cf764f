-- How does relevance form while a model is trained?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_relevance_forms_in_training.sql
--
-- One row per unit of each checkpoint of a training, calibration and metric (accuracy or cosine)
-- [arXiv 2605.14075, figures 7 to 13].
-- series, step   the training, and its step or number of tokens at the checkpoint
-- score          relevance in the unit of the metric, with its 95 % interval, over n_samples samples;
--                null where it is undefined: the checkpoint is at chance
-- accuracy       accuracy of the checkpoint on n_accuracy calibration samples, with its standard
--                error; null where no removals were measured
-- Empty where no study of maps has two checkpoints of one training (`checkpoints` of a model).
WITH trained AS (FROM models WHERE series IS NOT NULL QUALIFY count(*) OVER (PARTITION BY series) > 1),
accuracies AS (
    SELECT s.model, s.calibration, count(DISTINCT sample) AS n_accuracy,
        avg((CASE WHEN choice_score = 'acc' THEN correct ELSE coalesce(correct_norm, correct) END)::BIGINT) AS accuracy
    FROM sweeps AS s JOIN calibrations USING (model, calibration)
    WHERE s.selector = 'base' AND s.removed = 0 AND s.unit = 'none' AND correct IS NOT NULL GROUP BY ALL
)
SELECT t.series, t.step, r.model, r.calibration, r.component, r.metric, r.layer, r.unit, r.score, r.ci_low, r.ci_high,
    r.n_samples, accuracy, share_of_answers_stderr(accuracy, n_accuracy) AS accuracy_stderr, n_accuracy
FROM relevance AS r JOIN trained AS t USING (model) LEFT JOIN accuracies USING (model, calibration)
WHERE r.selector = 'base' AND r.removed = 0 AND r.metric IN ('accuracy', 'cosine')
ORDER BY t.series, r.component <> 'layer', r.component, r.metric, r.calibration, t.step, r.layer;
