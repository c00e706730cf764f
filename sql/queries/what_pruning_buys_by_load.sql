-- What does pruning buy, by the length of the prompt and the batch?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_pruning_buys_by_load.sql
--
-- One row per timing, prompt and batch [arXiv 2605.15491, tables 5, A8 and A9]. Ratios are to
-- the base model; the two were timed in turn, `repeats` times.
-- main         whether prompt and batch are the first ones of the configuration; all other tables and
--              figures use these
-- n_loads      pairs of a prompt and a batch that were measured
-- latency_ms, tokens_per_second, peak_memory_bytes   as measured; they hold only for this machine
-- component, composition, runs, n_alike   as in what_pruning_buys
-- Empty where no efficiency benchmark was run.
SELECT model, calibration, selector, removed, repair, healing, component, composition, runs, device, dtype, prompt, batch,
    generate, main IS NOT FALSE AS main, repeats, latency_ms, latency_ratio, latency_ratio_stderr,
    tokens_per_second, tokens_per_second_ratio, tokens_per_second_ratio_stderr, peak_memory_bytes, peak_memory_ratio,
    parameters_ratio, timed, n_alike, (SELECT count(DISTINCT (e.prompt, e.batch)) FROM efficiency AS e) AS n_loads
FROM distinct_timings
WHERE selector <> 'none' ORDER BY model, removed, runs, calibration, selector, repair, healing, prompt, batch;
