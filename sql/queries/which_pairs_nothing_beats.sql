-- Which pairs of selector and repair does no other pair beat?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_pairs_nothing_beats.sql
--
-- One row per model, size, selector and repair: own accuracy against perplexity of general text,
-- with standard errors.
-- best   whether no other pair of the size is better in accuracy or perplexity and at least equal
--        in the other
-- Empty where no pruned variant was benchmarked both on its own task and on general text.
SELECT * FROM frontier ORDER BY model, removed, selector, healing <> 'none', repair <> 'none', repair, healing;
