"""Metrics of the outputs at scored positions, compared with those of the base model."""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.protocol import Metric
from lamina.relevance.statistics import IntervalEnds, jeffreys_interval

MANY_CHANGES = 30
"""Number of samples with a changed token that is enough for a bootstrap."""


class OutputCosine(Metric):
    """How far the output turns: 1 - cos of its logits and those of the base model [FinerCut]."""

    name = "output_cosine"
    pass_ = "removal"
    columns = ("output_cosine",)
    help = "cosine distance of the logits"


class OutputNorm(Metric):
    """How far the output moves: L2 distance between its logits and the base model's [FinerCut]."""

    name = "output_norm"
    pass_ = "removal"
    columns = ("output_norm",)
    help = "L2 distance of the logits"


class JensenShannon(Metric):
    """How different the distribution of next tokens is: JS(base, f_-u), in nats [FinerCut]."""

    name = "output_js"
    pass_ = "removal"
    columns = ("output_js",)
    help = "Jensen-Shannon divergence of the next-token distribution"


class KullbackLeibler(Metric):
    """How much of the distribution of next tokens is lost: KL(base ‖ f_-u), in nats.

    As in arXiv 2410.14649.
    """

    name = "output_kl"
    pass_ = "removal"
    columns = ("output_kl",)
    help = "Kullback-Leibler divergence of the next-token distribution"


class Acceptance(Metric):
    """How often the base model would reject a draft of the pruned model: 1 - mean of Σ_v min(p, q).

    This is the total variation of base and f_-u. A token drafted from q is accepted with
    probability Σ_v min(p, q) [Leviathan et al., arXiv 2211.17192, cor. 3.6].
    """

    name = "acceptance"
    pass_ = "removal"
    columns = ("output_tv",)
    help = "how often the base model would reject the pruned model's draft"


class TokenAgreement(Metric):
    """How often another token becomes the likeliest one.

    This is 1 - the share of scored tokens whose argmax stays the same.

    In greedy decoding, this is how often a draft of f_-u would be rejected [Leviathan et al.,
    arXiv 2211.17192].
    """

    name = "agreement"
    pass_ = "removal"
    columns = ("output_flips",)
    help = "share of positions whose most likely token changes"

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> IntervalEnds:
        """The interval of `counted_interval` where it has one, else that of the bootstrap."""
        counted_low, counted_high = self.counted_interval(columns)
        drawn_low, drawn_high = super().interval(columns, context, scores, weights)
        ci_low = np.where(np.isnan(counted_low), drawn_low, counted_low)
        ci_high = np.where(np.isnan(counted_high), drawn_high, counted_high)
        return ci_low, ci_high

    def counted_interval(self, columns: Columns) -> IntervalEnds:
        """95 % interval of a proportion, (units,) each; NaN where the bootstrap gives the interval.

        Where each sample has one position, or few samples have a changed token, the score is a
        proportion, and 0 of n samples do not prove that it is 0. Samples of several positions count
        as the number of single positions with the same error [Korn and Graubard 1998].
        """
        flips = columns.values["output_flips"][1:]
        is_seen = ~np.isnan(flips)
        n_seen = is_seen.sum(axis=1)
        flips = np.where(is_seen, flips, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            flip_shares = flips.sum(axis=1) / n_seen
            deviations = np.where(is_seen, flips - flip_shares[:, None], 0.0)
            share_variances = (deviations**2).sum(axis=1) / n_seen**2
            n_equivalent = flip_shares * (1 - flip_shares) / share_variances

        # If all samples are equal, their variance cannot tell how many positions they are worth.
        n_positions = np.where(np.isfinite(n_equivalent), np.maximum(n_equivalent, n_seen), n_seen)
        ci_low, ci_high = jeffreys_interval(flip_shares * n_positions, n_positions)
        has_one_position = ((flips == 0) | (flips == 1)).all(axis=1)
        has_few_changes = (flips > 0).sum(axis=1) < MANY_CHANGES
        is_counted = has_one_position | has_few_changes
        return np.where(is_counted, ci_low, np.nan), np.where(is_counted, ci_high, np.nan)
