"""Table `drafts`, from variants that draft for their own base."""

from lamina.tables.columns import FLOAT, INT, STRING, VARIANT, Columns

GRAIN = (
    "One row per variant and way of decoding: the variant drafts tokens, the unpruned model reads them in one pass and "
    "keeps those that it would have written. Standard errors are over prompts."
)

COLUMNS: Columns = VARIANT | {
    "decoding": (STRING, "greedy: the likeliest token is taken; sampled: tokens are drawn at `temperature`."),
    "temperature": (FLOAT, "Temperature of sampled tokens, of base and draft alike; null for greedy."),
    "device": (STRING, "Device of the run."),
    "dtype": (STRING, "Floating point type of the weights."),
    "n_samples": (INT, "Number of prompts, all of test documents."),
    "prompt": (INT, "Length of each prompt, in tokens."),
    "draft": (INT, "Tokens that the draft proposes in a round, g."),
    "tokens": (INT, "Tokens that the base wrote alone behind all prompts together."),
    "same": (
        INT,
        "Prompts behind which base with draft wrote exactly the base's tokens; all of them in float32, below that a "
        "pass over several tokens may round a tie apart. Null for sampled.",
    ),
    "acceptance": (
        FLOAT,
        "Chance of a drafted token to be accepted, 0 to 1, behind each token that the base wrote: share of equal "
        "argmax (greedy), mean of Σ min(p, q) (sampled). The first token of a text is the base's own and not counted; "
        "null where no text is longer.",
    ),
    "acceptance_stderr": (FLOAT, "Its standard error."),
    "tokens_per_round": (FLOAT, "Tokens per pass of the base behind the prompt's own, 1 to g + 1, measured."),
    "tokens_per_round_stderr": (FLOAT, "Its standard error."),
    "tokens_per_round_expected": (
        FLOAT,
        "(1 - α^(g+1)) / (1 - α) with α = acceptance: what it were if acceptance did not change along a text.",
    ),
    "cost": (FLOAT, "Time of the draft's pass over one token relative to the base's, c."),
    "cost_stderr": (FLOAT, "Its standard error."),
    "verification": (FLOAT, "Time of the base's pass over g + 1 tokens relative to that over one, v_g."),
    "verification_stderr": (FLOAT, "Its standard error."),
    "break_even": (
        FLOAT,
        "Acceptance at which a round gives as many tokens as it costs, g c + v_g, 0 to 1; null where none does.",
    ),
    "speedup": (
        FLOAT,
        "Time per token of the base alone relative to base and draft, both measured in turn behind the same prompts, "
        "without the base's pass over the prompt, with the draft's; above 1 is faster.",
    ),
    "speedup_stderr": (FLOAT, "Its standard error."),
    "extra_bytes": (INT, "What the draft holds that the base does not: patches, and weights that a repair changed."),
    "kv_bytes_per_token": (INT, "Its own key-value cache per token, in bytes."),
}
