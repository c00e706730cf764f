"""Metrics of the answers: accuracy, the margin of the right choice, and the loss."""

from collections.abc import Mapping

import numpy as np

from lamina.relevance.columns import Columns, Context, hits, weighted_mean
from lamina.relevance.protocol import Metric
from lamina.relevance.statistics import DRAWS, TAIL, Ends, wilson_interval


class Accuracy(Metric):
    """The share of the accuracy above chance that is lost when a unit is removed."""

    name = "accuracy"
    pass_ = "removal"
    columns = ("correct", "correct_norm", "nll")
    help = "share of the model's advantage over chance that is lost"
    bound = 1.0
    remedy = (
        "Give calibration '{calibration}' more samples or few-shot examples, choose a task that the model can do, or "
        "a selector whose metric needs no accuracy (perplexity, cosine, angular)."
    )

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """1 - max(acc(f_-u) - r, 0) / max(acc(f) - r, 0) [arXiv 2605.14075, eq. 3], (draws, units); r is chance.

        weights: (draws, samples), rows sum to 1: each row is one weighting of the samples (a bootstrap draw, or the
            mean).

        0 means that nothing is lost, and negative that the model is better without the unit. A unit that left the sweep
        early is compared with the model on the samples that both saw.
        """
        right = hits(columns.values, context.score)
        without = right[1:]
        paired = np.where(np.isfinite(without), right[:1], np.nan)
        above, above_before = (
            np.maximum(weighted_mean(weights, x) - context.chance, 0) for x in (without, paired)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - above / above_before

    def undefined(self, columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
        """Why the metric is undefined here, and keys that rank the units instead: (units, keys), least relevant first.

        That is where the current model's accuracy is not distinguishable from chance (95 %). The unpruned model is then
        not ranked (None); later steps go by what leaves the most right answers, then by the lowest loss.
        """
        right = hits(columns.values, context.score)
        own = right[0][np.isfinite(right[0])]
        low, high = wilson_interval(own.sum(), len(own))
        if low > context.chance:
            return None
        reason = (
            f"the model scores {own.mean():.3f} (95 % interval {low:.3f} to {high:.3f}, {len(own)} samples), "
            f"not above chance ({context.chance:.3f})"
        )
        if context.removed == 0:
            return reason, None
        keys = np.stack(
            [-np.nanmean(right, axis=1), np.nanmean(columns.values["nll"], axis=1)], axis=1
        )
        return f"{reason}; ranked by raw accuracy, then by loss", keys[1:]

    def posterior(self, columns: Columns, context: Context, seed: int, draws: int) -> np.ndarray:
        """Draws of the scores, (draws, units), given how many answers stayed right, were lost, won, or neither.

        Half an answer of each kind is added (Jeffreys' prior over the four). A bootstrap of the samples would be
        certain if no answer changed, or if there is one sample; this posterior is not.
        """
        right = hits(columns.values, context.score)
        there = np.isfinite(right[1:]) & np.isfinite(right[:1])
        base, without = (np.where(there, answers, 0.0) for answers in (right[:1], right[1:]))
        both = (base * without).sum(axis=1)
        lost, won = base.sum(axis=1) - both, without.sum(axis=1) - both
        counts = np.stack([both, lost, won, there.sum(axis=1) - both - lost - won])  # (4, units)
        drawn = np.random.default_rng([seed, 4]).standard_gamma(
            counts + 0.5, size=(draws, *counts.shape)
        )
        stays, goes, comes, _ = np.moveaxis(drawn / drawn.sum(axis=1, keepdims=True), 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            above, before = (
                np.maximum(stays + other - context.chance, 0) for other in (comes, goes)
            )
            return np.asarray(1 - above / before)

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> Ends:
        """From the `posterior`, not the bootstrap. It never exceeds 1, the largest possible score."""
        draws = self.posterior(columns, context, context.seed, DRAWS)
        draws = np.where(np.isnan(draws), -np.inf, draws)
        with np.errstate(invalid="ignore"):
            low, high = np.quantile(draws, [TAIL, 1 - TAIL], axis=0, method="nearest")
        return low, high

    def not_finite(self, columns: Columns) -> np.ndarray:
        """An answer without finite scores is wrong, which does not show in its column; it does in the loss."""
        return np.asarray(np.isinf(columns.values["nll"][1:]).sum(axis=1))

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        return 1.0 - hits(values, score)

    def difficulty(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        """Samples that the model answers wrong, or right by a small margin, come first."""
        lead = _lead(values, score)
        # A sample without choices has no margin; the loss of its answer is on another scale, but orders them too.
        return np.where(np.isnan(lead), values["nll"], -lead)

    def at_chance(self, loss: float, chance: float) -> bool:
        return 1 - loss <= chance

    def accuracy(self, loss: float) -> float:
        return 1 - loss


class Margin(Metric):
    """How far the right choice's lead falls: accuracy's forward passes without its 0/1 noise [arXiv 2605.07271]."""

    name = "margin"
    pass_ = "removal"
    columns = ("gold_margin", "gold_margin_norm", "correct_norm")
    help = "how far the right choice's lead over the best other falls"
    signed = True
    remedy = "Write metric: accuracy or perplexity, or make calibration '{calibration}' of multiple choice alone."

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, None]:
        """Drop of the decision margin, in nats (per character for `acc_norm`).

        A unit that left the sweep early is compared with the model on the samples that both saw.
        """
        of = _lead(columns.values, context.score)
        return of[:1] - of[1:], None

    def undefined(self, columns: Columns, context: Context) -> tuple[str, None] | None:
        """Samples without choices have no margin; the mean over the others would use only a part of the calibration."""
        lacking = int(np.isnan(columns.values["correct_norm"][0]).sum())
        if not lacking:
            return None
        return f"{lacking} of {columns.n_samples} samples have no choices to lead over", None

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        return -_lead(values, score)


class Perplexity(Metric):
    """How much the loss rises when a unit is removed [SLEB, Shortened LLaMA]."""

    name = "perplexity"
    pass_ = "removal"
    columns = ("nll", "n_tokens")
    help = "how much the loss rises"

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
        """Rise of the loss in nats, and scored tokens."""
        nll, tokens = columns.values["nll"], columns.values["n_tokens"]
        return nll[1:] - nll[:1], np.broadcast_to(tokens[:1], nll[1:].shape)


def _lead(values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
    """Score of the gold choice less that of the best other choice."""
    return values["gold_margin_norm" if score == "acc_norm" else "gold_margin"]
