-- Which cut is worth having as a draft of its own base, that decides every token?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_draft_pays.sql
--
-- One row per variant and way of decoding, the fastest first. What is written is the base's in every case.
-- acceptance, stderr     chance of a drafted token to be kept, over n_samples prompts
-- break_even             acceptance at which a round of g drafted tokens costs what it gives; null where none does
-- tokens_per_round       tokens per pass of the base, measured, and what they were if acceptance did not change
-- cost, verification     c and v_g: pass of the draft, and of the base over g + 1 tokens, in passes of the base over one
-- speedup, ci_low, ci_high   of decoding behind the prompt, measured in turn with the base alone, with a 95 % interval
-- same                   prompts behind which the tokens are exactly the base's; null for sampled
SELECT model, calibration, selector, removed, round(removed / n_layers, 3) AS share, recovery, healing, decoding,
    acceptance, acceptance_stderr AS stderr, break_even, tokens_per_round, tokens_per_round_stderr,
    tokens_per_round_expected, cost, verification, speedup,
    speedup - 1.96 * speedup_stderr AS ci_low, speedup + 1.96 * speedup_stderr AS ci_high, same, n_samples
FROM drafts JOIN models USING (model)
ORDER BY model, calibration, decoding, speedup DESC;
