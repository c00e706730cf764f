-- How often does each repair help on the own task?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_often_repairs_help.sql
--
-- One row per repair.
-- better, worse   of n variants and own tasks, those whose gain is beyond its 95 % interval
-- gain, loss      mean points of accuracy that the repair gave back, and that pruning had cost
-- Empty where no repaired variant was benchmarked on its own task.
SELECT repair, healing, count(*) AS n, count(*) FILTER (gain > 1.959964 * gain_stderr) AS better,
    count(*) FILTER (gain < -1.959964 * gain_stderr) AS worse,
    100 * avg(gain) FILTER (metric <> 'perplexity') AS gain, 100 * avg(loss) FILTER (metric <> 'perplexity') AS loss
FROM repairs WHERE own
GROUP BY repair, healing ORDER BY healing <> 'none', repair <> 'none', repair, healing;
