"""The tables of what units are worth: sweeps, and relevance, which is computed from them."""

from lamina.tables.columns import SWEPT_KEYS, Column, Table

SWEEPS = Table(
    grain=(
        "One row per pass, sample and unit: what the model does on a calibration sample without "
        "one more unit. Unit none is the model before that removal. For a selector with a repair "
        "in the loop, all removed runs are repaired by patches that were fitted without the "
        "sample. A column that a pass does not measure is null. A value that is not finite is "
        "stored as infinite or as a wrong answer, never as null. The weights pass has one row "
        "per unit, as sample 0."
    ),
    columns={
        **SWEPT_KEYS,
        "unit": Column(
            "string",
            "Removed unit: 12, 12.attention or 12.mlp; none for no removal.",
        ),
        "sample": Column("int64", "Index of the sample in the calibration, from 0."),
        "correct": Column(
            "bool",
            "Whether the gold choice has the highest log-likelihood. For a generated answer, "
            "whether every gold token is the argmax; for text, whether the last token is. False "
            "if scores are not finite.",
        ),
        "correct_norm": Column(
            "bool",
            "The same with log-likelihoods divided by the length of the choice (acc_norm); null "
            "without choices.",
        ),
        "written_correct": Column(
            "bool",
            "Whether the answer that the model generated with a KV cache is right by the task's "
            "exact match, after any of the task's filters. Measured only by the generate pass.",
        ),
        "nll": Column(
            "double",
            "Negative log-likelihood of the gold answer, summed over its tokens, in nats; "
            "infinite if not finite.",
        ),
        "n_tokens": Column(
            "int64",
            "Number of scored tokens, those of the gold answer. The mean nll per token is "
            "sum(nll) / sum(n_tokens).",
        ),
        "gold_margin": Column(
            "double",
            "Log-likelihood of the gold answer minus that of the best other choice, in nats; "
            "positive where correct; null without choices; minus infinity if not finite.",
        ),
        "gold_margin_norm": Column(
            "double",
            "The same with log-likelihoods divided by the length of the choice (acc_norm), in "
            "nats per character.",
        ),
        "output_cosine": Column(
            "double",
            "1 - cos between the logits and those of the unpruned model, 0 to 2, mean over the "
            "scored tokens of all choices, each at the position that predicts it; infinite if "
            "not finite.",
        ),
        "output_norm": Column(
            "double",
            "Euclidean distance of the logits from those of the unpruned model, mean as for "
            "output_cosine.",
        ),
        "output_js": Column(
            "double",
            "Jensen-Shannon divergence of the next-token distributions from the unpruned model's, "
            "in nats, 0 to ln 2, mean as for output_cosine.",
        ),
        "output_kl": Column(
            "double",
            "KL(unpruned model || model without the unit) of the next-token distributions, in "
            "nats, mean as for output_cosine.",
        ),
        "output_tv": Column(
            "double",
            "Total variation distance of the next-token distributions from the unpruned model's, "
            "1 - sum of min(p, q), 0 to 1, mean as for output_cosine.",
        ),
        "output_flips": Column(
            "double",
            "Share of these positions at which the most likely token differs from the unpruned "
            "model's, 0 to 1; infinite if an output is not finite.",
        ),
        "cosine": Column(
            "double",
            "1 - cos between the stream before and after the unit, 0 to 2, mean over the tokens "
            "of context and gold answer; null for unit none.",
        ),
        "angular_last": Column(
            "double",
            "Angle between the stream before and after the unit at the last of those tokens, "
            "divided by pi, 0 to 1; null for unit none.",
        ),
        "taylor": Column(
            "double",
            "The sample's contribution to the sum over the unit's weights w of abs(w * "
            "gradient), where the gradient is the mean over the calibration. The mean over "
            "samples is that sum.",
        ),
        "magnitude": Column(
            "double",
            "Sum of abs(w) over the weights w of the unit; the same for every sample.",
        ),
    },
)

RELEVANCE = Table(
    grain=(
        "One row per metric and unit: relevance of the unit on a calibration, high = relevant, "
        "with a 95 % interval. For a selector with a repair in the loop, it is the relevance "
        "that remains after the repair."
    ),
    columns={
        **SWEPT_KEYS,
        "metric": Column(
            "string",
            "Metric: accuracy (1 = all accuracy above chance is lost, 0 = none, negative = "
            "better without the unit), or another one in docs/choose.md.",
        ),
        "unit": Column("string", "Unit: 12, 12.attention or 12.mlp."),
        "layer": Column("int64", "Layer of the unit, 0 to L - 1, numbered in the base model."),
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "score": Column(
            "double",
            "Relevance in the unit of the metric; null if undefined (see reason).",
        ),
        "ci_low": Column(
            "double",
            "Lower end of the 95 % interval of score over samples. For accuracy and exact_match, "
            "from the counts of answers that stayed right, were lost or were won (Jeffreys' "
            "prior). For agreement with few changed tokens, as for a proportion. For other "
            "metrics, by the bootstrap-t; null below 50 samples, which may miss rare large "
            "losses. For magnitude and random, which use no samples, score itself.",
        ),
        "ci_high": Column("double", "Upper end of the 95 % interval of score."),
        "n_samples": Column(
            "int64",
            "Number of samples behind score; 0 for magnitude and random, which use none.",
        ),
        "n_not_finite": Column(
            "int64",
            "Number of samples on which the scores without the unit were not finite; their "
            "answers count as wrong. Null in tables of earlier versions.",
        ),
        "rank": Column(
            "int64",
            "Rank of the unit in its sweep: 1 = least relevant, removed first. Of equal units, "
            "the deeper one comes first. Null if the unpruned model is at chance.",
        ),
        "reason": Column(
            "string",
            "Why score is null, and how units were ranked instead; null if score is defined.",
        ),
    },
)
