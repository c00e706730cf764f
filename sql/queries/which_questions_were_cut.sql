-- Which questions are longer than the context?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_questions_were_cut.sql
--
-- One row per model and calibration or task with such questions, the largest share first.
-- cut   number of questions, of `questions` in `source`, that lost their first tokens, as in lm-eval
-- Empty where every question fits into the model's context.
SELECT DISTINCT model, source, cut, questions
FROM (
    SELECT model, calibration AS source, n_cut AS cut, n_samples AS questions FROM calibrations
    UNION ALL SELECT model, task, n_cut, n_samples FROM benchmarks WHERE part_of IS NULL
)
WHERE cut > 0
ORDER BY cut / questions DESC, model, source;
