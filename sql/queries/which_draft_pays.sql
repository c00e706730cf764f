-- Which cut is worth having as a draft of its own base, that decides every token?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_draft_pays.sql
--
-- One row per variant and way of decoding, the fastest first. What is written is the base's in every case.
-- acceptance             chance of a drafted token to be kept; all with standard errors over n_samples prompts
-- break_even             acceptance at which a round of g drafted tokens costs what it gives; null where none does
-- tokens_per_round       tokens per pass of the base, measured, and what they were if acceptance did not change
-- cost, verification     c and v_g: pass of the draft, and of the base over g + 1 tokens, in passes of the base over one
-- speedup                of decoding behind the prompt, measured in turn with the base alone
-- same                   prompts behind which the tokens are exactly the base's; null for sampled
-- Empty where no drafts were measured: add `drafts` under `benchmarks`.
SELECT model, calibration, selector, removed, round(removed / n_layers, 3) AS share, repair, healing, decoding,
    acceptance, acceptance_stderr, break_even, tokens_per_round, tokens_per_round_stderr, tokens_per_round_expected,
    cost, cost_stderr, verification, verification_stderr, speedup, speedup_stderr, same, n_samples
FROM drafts JOIN models USING (model)
ORDER BY model, calibration, decoding, speedup DESC;
