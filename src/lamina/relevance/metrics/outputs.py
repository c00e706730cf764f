"""Metrics of the outputs at scored positions, compared with those of the unpruned model."""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.protocol import Metric
from lamina.relevance.statistics import Ends, share_interval

ENOUGH = 30  # so many samples with a changed token are enough for a bootstrap


class Cosine(Metric):
    """How far the output turns: 1 - cos of its logits and those of the unpruned model [FinerCut]."""

    name = "output_cosine"
    pass_ = "removal"
    columns = ("output_cosine",)
    help = "how far the output turns"
    bound = 2.0


class Norm(Metric):
    """How far the output moves: L2 distance between its logits and the unpruned model's [FinerCut]."""

    name = "output_norm"
    pass_ = "removal"
    columns = ("output_norm",)
    help = "how far the output moves, by its norm"


class JensenShannon(Metric):
    """How different the distribution of next tokens is, symmetrically: JS(base, f_-u), in nats [FinerCut]."""

    name = "output_js"
    pass_ = "removal"
    columns = ("output_js",)
    help = "Jensen-Shannon divergence of the output"
    bound = 0.6931471805599453  # ln 2


class KullbackLeibler(Metric):
    """How much of the unpruned model's distribution is lost: KL(base ‖ f_-u) of next tokens, in nats [EvoPress]."""

    name = "output_kl"
    pass_ = "removal"
    columns = ("output_kl",)
    help = "Kullback-Leibler divergence of the output"


class Acceptance(Metric):
    """How often the unpruned model would reject a draft by the cut model: 1 - mean of Σ_v min(p, q).

    This is the total variation of base and f_-u: a token drafted from q is accepted with chance Σ_v min(p, q)
    [Leviathan et al., arXiv 2211.17192, cor. 3.6].
    """

    name = "acceptance"
    pass_ = "removal"
    columns = ("output_tv",)
    help = "how often the model would reject the cut one's draft"
    bound = 1.0


class Agreement(Metric):
    """How often another token becomes the likeliest one: 1 - share of scored tokens where the argmax stays.

    For greedy decoding, this is how often a draft by f_-u would be rejected [Leviathan et al., arXiv 2211.17192].
    """

    name = "agreement"
    pass_ = "removal"
    columns = ("output_flips",)
    help = "share of tokens where another one becomes likeliest"
    bound = 1.0

    def proportion(self, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """95 % interval where each sample has one position or few have a changed token, (units,); NaN elsewhere.

        There the score is a proportion, and 0 of n samples do not prove that it is 0. Samples of several positions are
        counted as the number of single positions with the same error [Korn and Graubard 1998].
        """
        flips = columns.values["output_flips"][1:]
        there = ~np.isnan(flips)
        count, flips = there.sum(axis=1), np.where(there, flips, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = flips.sum(axis=1) / count
            variance = (np.where(there, flips - share[:, None], 0.0) ** 2).sum(axis=1) / count**2
            alike = share * (1 - share) / variance
        # Of samples that are all alike, nothing says how many tokens are as good as one.
        size = np.where(np.isfinite(alike), np.maximum(alike, count), count)
        low, high = share_interval(share * size, size)
        counted = ((flips == 0) | (flips == 1)).all(axis=1) | ((flips > 0).sum(axis=1) < ENOUGH)
        return np.where(counted, low, np.nan), np.where(counted, high, np.nan)

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> Ends:
        """By bootstrap, but for a `proportion`."""
        ends = zip(
            self.proportion(columns),
            super().interval(columns, context, scores, weights),
            strict=True,
        )
        low, high = (np.where(np.isnan(own), other, own) for own, other in ends)
        return low, high
