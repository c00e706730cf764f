-- Which questions have right and wrong choices of the same tokens?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_questions_no_score_decides.sql
--
-- One row per model and calibration or task with such questions, the largest share first.
-- undecided   number of them, of `questions` in `source`; a calibration leaves them out, a benchmark
--             takes the first of equal choices
-- Empty where the tokenizer distinguishes all right choices from the wrong ones.
SELECT DISTINCT model, source, use, undecided, questions
FROM (
    SELECT model, calibration AS source, 'calibration' AS use, n_undecided AS undecided,
        n_samples + n_undecided AS questions
    FROM calibrations
    UNION ALL
    SELECT model, task, 'benchmark', n_undecided, n_samples FROM benchmarks WHERE part_of IS NULL
)
WHERE undecided > 0
ORDER BY undecided / questions DESC, model, source, use;
