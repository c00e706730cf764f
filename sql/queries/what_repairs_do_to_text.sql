-- What does each repair do to texts that it was not fitted on?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_repairs_do_to_text.sql
--
-- One row per text and repair.
-- better, worse             of n variants, those whose gain is beyond its 95 % interval
-- pruned, repaired, base    perplexity: medians over the variants, and the base model's; highest is the worst one
-- Empty where no repaired variant was tested on a text that is not its calibration's own.
SELECT task, repair, healing, count(*) AS n, count(*) FILTER (gain > 1.959964 * gain_stderr) AS better,
    count(*) FILTER (gain < -1.959964 * gain_stderr) AS worse, any_value(base_value) AS base,
    median(pruned_value) AS pruned, median(value) AS repaired, max(value) AS highest
FROM repairs WHERE general_text
GROUP BY task, repair, healing ORDER BY task, healing <> 'none', repair <> 'none', repair, healing;
