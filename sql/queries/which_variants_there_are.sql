-- Which variants are there, and what does each keep?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_variants_there_are.sql
--
-- One row per variant, the base models first. The columns are those of view variants, with standard
-- errors, the handle by which commands name it, and whether it passes the gates of its study.
-- own_tasks, own_value   the own tasks and the number measured there; for a base model, the task of
--                        its variants if all have the same one
-- own_kept, text_ratio   share of the base model's score on the own tasks; perplexity of general
--                        text divided by the base model's, for the text that suffers most
-- parameters_ratio       as measured, else counted from the shapes of layers and patches
-- Empty where nothing was benchmarked and nothing timed.
WITH only_tasks AS (
    SELECT model, any_value(own_tasks) AS task FROM variants WHERE selector <> 'none' GROUP BY model
    HAVING count(DISTINCT own_tasks) = 1
),
base_scores AS (
    SELECT s.* FROM scores AS s JOIN only_tasks USING (model, task) WHERE s.selector = 'none'
)
SELECT handle, gates,
    v.* REPLACE (
        coalesce(v.parameters_ratio, s.parameters / s.base_parameters) AS parameters_ratio,
        coalesce(v.own_tasks, b.task) AS own_tasks,
        coalesce(v.own_metric, b.metric) AS own_metric,
        coalesce(v.own_value, b.value) AS own_value,
        coalesce(v.own_stderr, b.stderr) AS own_stderr,
        coalesce(v.own_samples, b.n_samples) AS own_samples
    )
FROM variants AS v LEFT JOIN handles USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN gated_variants USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN variant_sizes AS s USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN base_scores AS b USING (model, calibration, selector, removed, repair, healing)
ORDER BY v.model, selector <> 'none', calibration, selector, removed, healing <> 'none', repair <> 'none', repair, healing;
