-- Where do cosine and accuracy disagree most?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_metrics_disagree.sql
--
-- One row per layer and calibration, the widest disagreement first.
-- accuracy_rank, cosine_rank   rank among the n_units layers, 1 = least relevant = removed first
-- rank_difference              positive: accuracy finds the layer more relevant than cosine does
--                              (cosine would remove what the task needs); negative: cosine keeps
--                              what the task does not need
-- accuracy, cosine             the scores, each with its 95 % interval and sample count
-- spearman                     rank correlation of the two over the layers of this calibration
-- confirmed                    whether this layer's accuracy interval excludes the accuracy score of
--                              the layer whose accuracy_rank is this layer's cosine_rank (of both
--                              layers, if that is between two); null without an interval
-- Empty where no study of maps lists both accuracy and cosine, or the base model is at chance on all its calibrations.
WITH placed AS (
    SELECT d.*, corr(accuracy_rank, cosine_rank) OVER (PARTITION BY model, calibration) AS spearman,
        list_sort(list(accuracy) OVER (PARTITION BY model, calibration)) AS in_order
    FROM disagreements AS d WHERE component = 'layer'
)
SELECT model, calibration, layer, rank_difference, accuracy_rank, cosine_rank, n_units,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, cosine, cosine_low, cosine_high, cosine_samples, spearman,
    in_order[ceil(cosine_rank)::BIGINT] < accuracy_low OR in_order[floor(cosine_rank)::BIGINT] > accuracy_high AS confirmed
FROM placed
ORDER BY abs(rank_difference) DESC, model, calibration, layer;
