-- What does pruning buy in time, size and memory?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_buys.sql
--
-- One row per timing, for the first prompt and batch of the configuration. Ratios are to the base
-- model; the two were timed in turn, `repeats` times.
-- component, composition, runs   kind of the removed units, how many layers lack what, and the number
--                                of contiguous runs
-- timed             the variant that was measured, if this one shares its timing
-- n_alike           timings that only the variant distinguishes, where layers differ in size or type
-- Empty where no efficiency benchmark was run.
SELECT model, calibration, selector, removed, repair, healing, component, composition, runs, device, dtype, prompt,
    generate, batch, repeats, latency_ratio, latency_ratio_stderr, tokens_per_second_ratio,
    tokens_per_second_ratio_stderr, parameters_ratio, peak_memory_ratio, timed, n_alike
FROM distinct_timings
WHERE selector <> 'none' AND main IS NOT FALSE
ORDER BY model, removed, runs, calibration, selector, repair, healing;
