"""Metrics of the answers: accuracy, exact match, the margin of the right choice, and the loss."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lamina.relevance.columns import Columns, Context, correct_answers, weighted_mean
from lamina.relevance.protocol import Metric
from lamina.relevance.statistics import N_DRAWS, TAIL, IntervalEnds, wilson_interval


@dataclass(frozen=True)
class RightAnswers:
    """Which samples are answered right by the current model, and by the model without each unit."""

    values: np.ndarray
    """1 right, 0 wrong, NaN not measured, (1 + units, samples); row 0 is the current model."""
    chance: float
    """Accuracy of guessing, r."""

    def lost_shares(self, weights: np.ndarray) -> np.ndarray:
        """1 - max(acc(f_-u) - r, 0) / max(acc(f) - r, 0), (draws, units) [arXiv 2605.14075, eq. 3].

        0 means that nothing is lost; negative, that the model is better without the unit.

        weights: (draws, samples).
        """
        right_without_unit = self.values[1:]
        right_with_unit = np.where(np.isfinite(right_without_unit), self.values[:1], np.nan)
        above_without = weighted_mean(weights, right_without_unit) - self.chance
        above_with = weighted_mean(weights, right_with_unit) - self.chance
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - np.maximum(above_without, 0) / np.maximum(above_with, 0)

    def explain_chance(self) -> str | None:
        """Why the current model is not distinguishable from chance (95 %); None if it is."""
        current_right = self.values[0][np.isfinite(self.values[0])]
        ci_low, ci_high = wilson_interval(current_right.sum(), len(current_right))
        if ci_low > self.chance:
            return None
        return (
            f"the model scores {current_right.mean():.3f} (95 % interval {ci_low:.3f} to "
            f"{ci_high:.3f}, {len(current_right)} samples), not above chance ({self.chance:.3f})"
        )

    def draw_lost_shares(self, seed: int, n_draws: int) -> np.ndarray:
        """Draws of the lost shares, (draws, units), from their posterior given the answer counts.

        An answer stayed right, was lost, was won, or stayed wrong.

        Half an answer of each kind is added (Jeffreys' prior over the four). With one sample, or if
        no answer changed, a bootstrap of the samples would have no spread; this posterior has.
        """
        generator = np.random.default_rng([seed, 4])
        answer_counts = self._count_changes()
        gammas = generator.standard_gamma(answer_counts + 0.5, size=(n_draws, *answer_counts.shape))
        shares = gammas / gammas.sum(axis=1, keepdims=True)  # Dirichlet, (draws, 4, units)
        share_kept, share_lost, share_won, _ = np.moveaxis(shares, 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            above_without = np.maximum(share_kept + share_won - self.chance, 0)
            above_with = np.maximum(share_kept + share_lost - self.chance, 0)
            return np.asarray(1 - above_without / above_with)

    def _count_changes(self) -> np.ndarray:
        """Answers that stayed right, were lost, were won, and stayed wrong, (4, units)."""
        seen_by_both = np.isfinite(self.values[1:]) & np.isfinite(self.values[:1])
        right_with_unit = np.where(seen_by_both, self.values[:1], 0.0)
        right_without_unit = np.where(seen_by_both, self.values[1:], 0.0)
        n_kept = (right_with_unit * right_without_unit).sum(axis=1)
        n_lost = right_with_unit.sum(axis=1) - n_kept
        n_won = right_without_unit.sum(axis=1) - n_kept
        n_wrong = seen_by_both.sum(axis=1) - n_kept - n_lost - n_won
        return np.stack([n_kept, n_lost, n_won, n_wrong])

    def interval(self, seed: int) -> IntervalEnds:
        """95 % intervals of the lost shares from `draw_lost_shares`, not from the bootstrap.

        They never exceed 1, the largest possible share.
        """
        draws = self.draw_lost_shares(seed, N_DRAWS)
        draws = np.where(np.isnan(draws), -np.inf, draws)
        with np.errstate(invalid="ignore"):
            ci_low, ci_high = np.quantile(draws, [TAIL, 1 - TAIL], axis=0, method="nearest")
        return ci_low, ci_high


class Accuracy(Metric):
    """The share of the accuracy above chance that is lost when a unit is removed."""

    name = "accuracy"
    pass_ = "removal"
    columns = ("correct", "correct_norm", "nll")
    help = "share of the accuracy above chance that is lost"
    remedy = (
        "Give calibration '{calibration}' more samples or few-shot examples, choose a task that "
        "the model can do, or a selector whose metric needs no accuracy (perplexity, cosine, "
        "angular)."
    )

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """The shares that are lost, (draws, units)."""
        return self._right_answers(columns, context).lost_shares(weights)

    def undefined(self, columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
        """Undefined where the current model's accuracy is not distinguishable from chance (95 %).

        The base model is then not ranked. Later steps rank units by the most right answers left,
        then by the lowest loss.
        """
        right_answers = self._right_answers(columns, context)
        reason = right_answers.explain_chance()
        if reason is None:
            return None
        if context.removed == 0:
            return reason, None
        most_right_first = -np.nanmean(right_answers.values, axis=1)
        mean_losses = np.nanmean(columns.values["nll"], axis=1)
        sort_keys = np.stack([most_right_first, mean_losses], axis=1)[1:]
        return f"{reason}; ranked by raw accuracy, then by loss", sort_keys

    def posterior(self, columns: Columns, context: Context, seed: int, n_draws: int) -> np.ndarray:
        """Posterior draws of the scores, (draws, units), given the answer counts."""
        return self._right_answers(columns, context).draw_lost_shares(seed, n_draws)

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> IntervalEnds:
        return self._right_answers(columns, context).interval(context.seed)

    def not_finite(self, columns: Columns) -> np.ndarray:
        """Counted in the loss, because an answer without finite scores just counts as wrong."""
        return np.asarray(np.isinf(columns.values["nll"][1:]).sum(axis=1))

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        return 1.0 - correct_answers(values, score)

    def accuracy(self, loss: float) -> float:
        return 1 - loss

    def _right_answers(self, columns: Columns, context: Context) -> RightAnswers:
        return RightAnswers(correct_answers(columns.values, context.score), context.chance)


class ExactMatch(Metric):
    """The share of right written answers that is lost when a unit is removed.

    Accuracy on a generated sample requires every token of the answer in the data to be the
    likeliest. Here the model may word the answer differently, if a filter of the task finds it.
    """

    name = "exact_match"
    pass_ = "generate"
    columns = ("written_correct",)
    help = "share of the right generated answers that is lost"
    remedy = (
        "Give calibration '{calibration}' more samples or few-shot examples, choose a task that "
        "the model can do, or a selector whose metric needs no right answer (perplexity, cosine, "
        "angular)."
    )

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """The shares that are lost, (draws, units); r is 0, since nobody guesses a text."""
        return self._right_answers(columns).lost_shares(weights)

    def undefined(self, columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
        """Undefined where answers were written and the current model has none right.

        The base model is then not ranked. Later steps rank units by the most right answers left.
        """
        if not columns.is_measured(self.columns[0]):
            return None
        right_answers = self._right_answers(columns)
        reason = right_answers.explain_chance()
        if reason is None:
            return None
        if context.removed == 0:
            return reason, None
        most_right_first = -np.nanmean(right_answers.values[1:], axis=1)
        return f"{reason}; ranked by raw exact match", most_right_first[:, None]

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> IntervalEnds:
        return self._right_answers(columns).interval(context.seed)

    def _right_answers(self, columns: Columns) -> RightAnswers:
        return RightAnswers(columns.values["written_correct"], chance=0.0)


class Margin(Metric):
    """How far the right choice's margin falls: accuracy without its 0/1 noise [arXiv 2605.07271].

    It takes the same forward passes.
    """

    name = "margin"
    pass_ = "removal"
    columns = ("gold_margin", "gold_margin_norm", "correct_norm")
    help = "drop of the right choice's margin over the best other choice"
    remedy = (
        "Write `metric: accuracy` or `metric: perplexity`, or give calibration '{calibration}' "
        "only multiple-choice samples."
    )

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, None]:
        """Drop of the margin, in nats (per character for `acc_norm`), (units, samples)."""
        margins = gold_margins(columns.values, context.score)
        return margins[:1] - margins[1:], None

    def undefined(self, columns: Columns, context: Context) -> tuple[str, None] | None:
        """Samples without choices have no margin.

        The mean over the others would use only part of the calibration.
        """
        n_without_choices = int(np.isnan(columns.values["correct_norm"][0]).sum())
        if not n_without_choices:
            return None
        reason = f"{n_without_choices} of {columns.n_samples} samples have no choices, so no margin"
        return reason, None

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        return -gold_margins(values, score)


class Perplexity(Metric):
    """How much the loss rises when a unit is removed [SLEB, Shortened LLaMA]."""

    name = "perplexity"
    pass_ = "removal"
    columns = ("nll", "n_tokens")
    help = "rise of the loss"

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
        """Rise of the loss in nats, and number of scored tokens, (units, samples) each."""
        losses = columns.values["nll"]
        n_tokens = columns.values["n_tokens"]
        rises = losses[1:] - losses[:1]
        return rises, np.broadcast_to(n_tokens[:1], rises.shape)


def gold_margins(values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
    """Log-likelihood of the right choice minus that of the best other one.

    score: How choices are compared: `acc` or `acc_norm`.
    """
    return values["gold_margin_norm" if score == "acc_norm" else "gold_margin"]
