-- Where do cosine and accuracy disagree most?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_metrics_disagree.sql
--
-- One row per layer and calibration, the widest disagreement first.
-- accuracy_rank, cosine_rank   place among the n_units layers, 1 = least relevant = goes first
-- rank_difference              positive: accuracy finds the layer more relevant than cosine does (cosine would remove
--                              what the task needs); negative: cosine keeps what the task does not need
-- accuracy, cosine             the scores, each with its 95 % interval and sample count
-- spearman                     rank correlation of the two over the layers of this calibration
-- confirmed                    accuracy's interval does not reach the score of the layer that cosine's place stands for
-- Empty where no study of maps lists both accuracy and cosine, or the base model is at chance on all its calibrations.
WITH placed AS (
    SELECT d.*, corr(accuracy_rank, cosine_rank) OVER (PARTITION BY model, calibration) AS spearman,
        (SELECT min(e.accuracy) FROM disagreements AS e WHERE e.model = d.model AND e.calibration = d.calibration
            AND e.component = d.component AND e.accuracy_rank >= d.cosine_rank) AS score_at_cosine_rank
    FROM disagreements AS d WHERE component = 'layer'
)
SELECT model, calibration, layer, rank_difference, accuracy_rank, cosine_rank, n_units,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, cosine, cosine_low, cosine_high, cosine_samples, spearman,
    coalesce(score_at_cosine_rank NOT BETWEEN accuracy_low AND accuracy_high, false) AS confirmed
FROM placed
ORDER BY abs(rank_difference) DESC, model, calibration, layer;
