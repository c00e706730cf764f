-- How does accuracy fall with the number of removed layers, for each selector?
--
--   duckdb results/lamina.duckdb -f sql/queries/accuracy_against_removed.sql
--
-- One row per selector, size and the calibration's own benchmark task, without any repair.
-- value, stderr          on n_samples test documents (a perplexity where metric says so: lower is better)
-- change, change_stderr  against the base model, paired over the documents where paired is true
-- kept, kept_stderr      share of the base model's number that is left, 1 = all; null where that is at chance
-- chance                 accuracy of guessing, where known
-- Empty where no study prunes, or none tests its variants on the calibration's own task.
SELECT model, calibration, task, metric, selector, removed, value, stderr, n_samples,
    base_value, base_stderr, change, change_stderr, paired, kept, kept_stderr, chance
FROM scores
WHERE own AND repair = 'none' AND healing = 'none'
ORDER BY model, calibration, task, selector, removed;
