"""The tables of what units are worth: sweeps, and relevance, which is computed from them."""

from lamina.tables.columns import SWEPT_KEYS, Column, Table

SWEEPS = Table(
    grain=(
        "One row per pass, sample and unit: what the model does on a calibration sample when one more "
        "unit is skipped. Unit none is the model before that removal. Of a selector with a repair "
        "in the loop, all runs of skipped layers are repaired, by patches that were fitted "
        "without the sample. A pass that does not measure a column leaves it null; a number that "
        "is not finite is infinite, or a wrong answer, and never null. The weights pass has one "
        "row per unit, as sample 0."
    ),
    columns={
        **SWEPT_KEYS,
        "unit": Column(
            "string",
            "Unit skipped: 12, 12.attention or 12.mlp; none for nothing skipped.",
        ),
        "sample": Column("int64", "Index of the sample in the calibration, from 0."),
        "correct": Column(
            "bool",
            "Whether the gold choice had the highest log-likelihood; generated: whether every "
            "gold token was the argmax; text: whether the last token was. False where scores are "
            "not finite.",
        ),
        "correct_norm": Column(
            "bool",
            "The same with log-likelihoods divided by the length of the choice (acc_norm); null "
            "without choices.",
        ),
        "written_correct": Column(
            "bool",
            "Whether the answer that the model wrote with its cache is right by the exact match of "
            "its task, after one of the task's filters. Measured by the generate pass alone.",
        ),
        "nll": Column(
            "double",
            "Negative log-likelihood of the gold answer, summed over its tokens, in nats; "
            "infinite if not finite.",
        ),
        "n_tokens": Column(
            "int64",
            "Scored tokens: those of the gold answer alone. Mean nll per token is sum(nll) / "
            "sum(n_tokens).",
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
            "1 - cos of the logits against those of the unpruned model, 0 to 2, mean over the "
            "scored tokens of all choices, each at the position that predicts it; infinite if not "
            "finite.",
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
            "KL(unpruned model || without the unit) of the next-token distributions, in nats, "
            "mean as for output_cosine.",
        ),
        "output_tv": Column(
            "double",
            "Total variation distance of the next-token distributions from the unpruned model's, "
            "1 - sum of min(p, q), 0 to 1, mean as for output_cosine.",
        ),
        "output_flips": Column(
            "double",
            "Share of those positions at which the likeliest token is not the unpruned model's, 0 "
            "to 1; infinite if an output is not finite.",
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
            "The sample's share of the sum over the unit's weights w of abs(w * gradient), the "
            "gradient being the calibration's mean: the mean over samples is that sum.",
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
        "with a 95 % interval. Of a selector with a repair in the loop, it is what is lost of the "
        "unit once that is repaired."
    ),
    columns={
        **SWEPT_KEYS,
        "metric": Column(
            "string",
            "Metric: accuracy (1 = all above chance lost, 0 = none, negative = better without), "
            "or another one of docs/choose.md.",
        ),
        "unit": Column("string", "Unit: 12, 12.attention or 12.mlp."),
        "layer": Column("int64", "Layer of the unit, 0 to L - 1, numbered in the base model."),
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "score": Column(
            "double",
            "Relevance in the unit of the metric; null where undefined (see reason).",
        ),
        "ci_low": Column(
            "double",
            "Lower end of the 95 % interval of score, over samples: of accuracy by counts of "
            "answers that stayed, were lost or won (Jeffreys' prior), of others by the "
            "bootstrap-t. Null for fewer than 50 samples of these, which may lack the rare large "
            "losses; score itself for magnitude and random, which look at none.",
        ),
        "ci_high": Column("double", "Upper end of the 95 % interval of score."),
        "n_samples": Column(
            "int64",
            "Number of samples behind score; 0 for magnitude, which looks at weights only.",
        ),
        "n_not_finite": Column(
            "int64",
            "Samples on which the scores without the unit were not finite; their answers count as "
            "wrong. Null in tables of earlier versions.",
        ),
        "rank": Column(
            "int64",
            "Place of the unit in the ranking of its sweep, 1 = least relevant, goes first; among "
            "equals the deeper one. Null where the unpruned model is at chance.",
        ),
        "reason": Column(
            "string",
            "Why score is null, and what the ranking fell back to; null in the ordinary case.",
        ),
    },
)
