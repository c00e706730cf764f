-- How much is left of right choices, and of right answers that are written?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_much_of_writing_is_left.sql
--
-- One row per repair, means over n variants: percent of the base model's number.
-- Empty where no task measures written answers beside choices.
SELECT repair, healing, count(*) AS n, 100 * avg(choice_kept) AS chosen, 100 * avg(written_kept) AS written
FROM choices_and_generation WHERE own AND removed > 0
GROUP BY repair, healing ORDER BY healing <> 'none', repair <> 'none', repair, healing;
