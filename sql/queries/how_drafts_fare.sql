-- How often are drafts accepted, and how much faster are base and draft together?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_drafts_fare.sql
--
-- One row per variant that drafted, and way of decoding; n_samples prompts.
-- share                  of the layers that the draft lacks
-- acceptance, speedup    chance that a drafted token is kept; time per token of the base alone over that of both
-- break_even             acceptance at which a round gives as many tokens as it costs
-- Empty where no drafts were measured (benchmarks: drafts).
SELECT model, calibration, selector, repair, healing, decoding, removed, removed / n_layers AS share, acceptance,
    acceptance_stderr, speedup, speedup_stderr, break_even, tokens_per_round, tokens_per_round_stderr, cost,
    verification, n_samples, draft, drafts.dtype, device
FROM drafts JOIN models USING (model)
WHERE acceptance IS NOT NULL
ORDER BY model, calibration, decoding, selector, repair, healing, removed;
