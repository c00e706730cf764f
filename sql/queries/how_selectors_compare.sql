-- How do two selectors compare at equal size and repair?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_selectors_compare.sql
--
-- One row per pair, size and repair: mean over the calibrations' own tasks.
-- difference, low, high   points of accuracy of `selector` ahead of `rival`, with the 95 % interval of the pair alone
-- p_holm                  of a paired test, corrected for the pairs of the size and repair
-- Empty where no two selectors were tested on documents with right and wrong answers.
SELECT model, repair, healing, removed, selector, rival, 100 * difference AS difference, 100 * ci_low AS low,
    100 * ci_high AS high, p_holm, n_samples
FROM comparisons WHERE task = 'all'
ORDER BY model, healing <> 'none', repair <> 'none', repair, healing, selector <> 'accuracy', selector, rival,
    removed;
