-- What is left of the answers that a variant chooses, and of those that it writes?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_is_left_of_choosing_and_writing.sql
--
-- One row per variant and own task whose questions are answered both ways.
-- choice_kept, written_kept   shares of the base model's scores, with standard errors over
--                             n_samples test documents
-- bare                        whether the variant has neither repair nor healing
-- Empty where no task measures written answers in addition to choices (`generate` of a benchmark task).
SELECT *, repair = 'none' AND healing = 'none' AS bare FROM choices_and_generation
WHERE own AND selector <> 'none' AND choice_kept IS NOT NULL AND written_kept IS NOT NULL
ORDER BY model, task, healing <> 'none', repair <> 'none', repair, healing, calibration, selector, removed;
