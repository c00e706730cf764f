-- Which variants are there, and what does each keep?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_variants_there_are.sql
--
-- One row per variant, the base models first; its columns are those of table variants, with standard
-- errors, its handle, by which commands know it, and whether it passes the gates of its study.
-- own_kept, text_ratio   share of the base model's number on the own tasks; perplexity of general
--                        text divided by the base model's, of the text that suffers most
-- parameters_ratio       measured, else counted from the shapes of layers and patches
-- Empty where nothing was benchmarked and nothing timed.
SELECT handle, gates,
    v.* REPLACE (coalesce(v.parameters_ratio, s.parameters / s.base_parameters) AS parameters_ratio)
FROM variants AS v LEFT JOIN handles USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN gated_variants USING (model, calibration, selector, removed, repair, healing)
LEFT JOIN variant_sizes AS s USING (model, calibration, selector, removed, repair, healing)
ORDER BY model, removed > 0, calibration, selector, removed, healing <> 'none', repair <> 'none', repair, healing;
