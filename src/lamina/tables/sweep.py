"""The tables of what units are worth: sweeps, and relevance, which is computed from them."""

from lamina.tables.columns import SWEPT

SWEEPS = SWEPT.table("""
One row per sample and unit: what the model does on a calibration sample when one more unit is skipped. Unit none is the
model before that removal. Of a selector with a repair in the loop, all runs of skipped layers are repaired, by patches
that were fitted without the sample. A pass that does not measure a column leaves it null; a number that is not finite
is infinite, or a wrong answer, and never null. The weights pass has one row per unit, as sample 0.

unit (string): Unit skipped: 12, 12.attention or 12.mlp; none for nothing skipped.
sample (int64): Index of the sample in the calibration, from 0.
correct (bool): Whether the gold choice had the highest log-likelihood; generated: whether every gold token was the
    argmax; text: whether the last token was. False where scores are not finite.
correct_norm (bool): The same with log-likelihoods divided by the length of the choice (acc_norm); null without choices.
nll (double): Negative log-likelihood of the gold answer, summed over its tokens, in nats; infinite if not finite.
n_tokens (int64): Scored tokens: those of the gold answer alone. Mean nll per token is sum(nll) / sum(n_tokens).
gold_margin (double): Log-likelihood of the gold answer minus that of the best other choice, in nats; positive where
    correct; null without choices; minus infinity if not finite.
gold_margin_norm (double): The same with log-likelihoods divided by the length of the choice (acc_norm), in nats per
    character.
output_cosine (double): 1 - cos of the logits against those of the unpruned model, 0 to 2, mean over the scored tokens
    of all choices, each at the position that predicts it; infinite if not finite.
output_norm (double): Euclidean distance of the logits from those of the unpruned model, mean as for output_cosine.
output_js (double): Jensen-Shannon divergence of the next-token distributions from the unpruned model's, in nats, 0 to
    ln 2, mean as for output_cosine.
output_kl (double): KL(unpruned model || without the unit) of the next-token distributions, in nats, mean as for
    output_cosine.
output_tv (double): Total variation distance of the next-token distributions from the unpruned model's, 1 - sum of
    min(p, q), 0 to 1, mean as for output_cosine.
output_flips (double): Share of those positions at which the likeliest token is not the unpruned model's, 0 to 1;
    infinite if an output is not finite.
cosine (double): 1 - cos between the stream before and after the unit, 0 to 2, mean over the tokens of context and gold
    answer; null for unit none.
angular_last (double): Angle between the stream before and after the unit at the last of those tokens, divided by pi, 0
    to 1; null for unit none.
residual (double): Runs of layers go with the unit: the sum over them of the sample's part in the share of the stream's
    variance at their ends that the best linear map of the stream at their starts leaves unexplained, fitted without the
    sample, times the number of samples. The mean over samples is the sum of the shares.
taylor (double): The sample's share of the sum over the unit's weights w of abs(w * gradient), the gradient being the
    calibration's mean: the mean over samples is that sum.
magnitude (double): Sum of abs(w) over the weights w of the unit; the same for every sample.
chosen (bool): Whether the budget of an early-leaving sweep settled on this unit to go; null in full sweeps. What left
    early has fewer rows: under budget exact its hardest samples, of which no mean tells anything of the others.
""")

RELEVANCE = SWEPT.table("""
One row per metric and unit: relevance of the unit on a calibration, high = relevant, with a 95 % interval. Of a
selector with a repair in the loop, it is what is lost of the unit once that is repaired.

metric (string): Metric: accuracy (1 = all above chance lost, 0 = none, negative = better without), or another one of
    docs/choose.md.
unit (string): Unit: 12, 12.attention or 12.mlp.
layer (int64): Layer of the unit, 0 to L - 1, numbered in the base model.
component (string): Kind of unit: layer, attention or mlp.
score (double): Relevance in the unit of the metric; null where undefined (see reason).
ci_low (double): Lower end of the 95 % interval of score, over samples: of accuracy by counts of answers that stayed,
    were lost or won (Jeffreys' prior), of others by the bootstrap-t. Null for fewer than 50 samples of these, which
    may lack the rare large losses; score itself for magnitude and random, which look at none.
ci_high (double): Upper end of the 95 % interval of score.
at_least (double): What score is at least where it is null because the unit left a sweep of budget exact: with nothing
    lost on the samples that it did not see. No estimate and no mean. Null elsewhere, for metric margin, and in tables
    of earlier versions.
n_samples (int64): Number of samples behind score, or at_least: fewer than the calibration has where a budget let the
    unit leave early (random ones under race, the hardest under exact); 0 for magnitude, which looks at weights only.
n_not_finite (int64): Samples on which the scores without the unit were not finite; their answers count as wrong. Null
    in tables of earlier versions.
rank (int64): Place of the unit in the ranking of its sweep, 1 = least relevant, goes first; among equals the deeper
    one. Units that left early come after those that saw more samples. Null where the unpruned model is at chance.
reason (string): Why score is null, and what the ranking fell back to; null in the ordinary case.
""")
