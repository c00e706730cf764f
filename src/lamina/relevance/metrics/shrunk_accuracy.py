"""Accuracy relevance as small-area estimation: the measured drop where samples suffice, else a prediction by sureness.

The drops of accuracy y of all units, as shares of the accuracy above chance, have a sampling covariance D that is taken
as known. The model is y = Xβ + v + e. A row of X is (1, the drop of the probability of right answers), v ~ N(0, A I) is
the unit's own deviation, and e ~ N(0, D). The best linear unbiased prediction is Xβ̂ + A (A I + D)⁻¹ (y - Xβ̂), where A
maximises its restricted likelihood [Fay and Herriot 1979, where D is diagonal; here the units answer the same samples].
This use of it is lamina's own.
"""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean
from lamina.relevance.metrics import expected_accuracy
from lamina.relevance.metrics.accuracy import hits
from lamina.relevance.metrics.expected_accuracy import probabilities
from lamina.relevance.statistics import TAIL

METRIC = {
    "pass_": "removal",
    "column": "choice_scores",
    "help": "accuracy where samples tell it, else what the sureness of right answers predicts",
    "signed": True,
    "pooled": True,
}

REMEDY = expected_accuracy.REMEDY
# Values of A that are tried: 0, and steps of a third of a power of two about the mean of D.
_TRIED = np.concatenate([[0.0], 2.0 ** np.arange(-8, 8.1, 1 / 3)])
# A line and what units are beside it.
_FEWEST = 4


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """The predicted drop as a share of the accuracy above chance, (draws, units).

    Parameters
    ----------
    weights
        (draws, samples), rows sum to 1: each row is one weighting of the samples (a bootstrap draw, or the mean).
    """
    y, x = _drops(columns, weights, context)
    predicted, _, likelihood = _predicted(y, x, _covariance(columns, context))
    best = likelihood.argmax(axis=0)
    return np.asarray(np.take_along_axis(predicted, best[None, :, None], axis=0)[0])


def undefined(columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
    """As for expected accuracy. In addition, fewer than four units do not show how units differ."""
    if (reason := expected_accuracy.undefined(columns, context)) is not None:
        return reason
    if columns.has("choice_scores") and len(columns.units) < _FEWEST:
        return f"{len(columns.units)} units are too few to say how units differ from what sureness predicts", None
    return None


def interval(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """95 % posterior interval of the score, (units,), under a flat prior on β and A. It includes the error of A."""
    weights = np.full((1, columns.n_samples), 1 / columns.n_samples)
    y, x = _drops(columns, weights, context)
    predicted, errors, likelihood = (each[:, 0] for each in _predicted(y, x, _covariance(columns, context)))
    # A flat prior of A is one that grows with A where the steps of A do.
    chance = np.exp(likelihood - likelihood.max()) * np.gradient(_TRIED)
    chance /= chance.sum()
    normal = np.random.default_rng([context.seed, 5]).standard_normal((4000, 1))
    at = np.random.default_rng([context.seed, 6]).choice(len(_TRIED), 4000, p=chance)
    low, high = np.quantile(predicted[at] + errors[at] * normal, [TAIL, 1 - TAIL], axis=0)
    return low, high


def _drops(columns: Columns, weights: np.ndarray, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Drops of accuracy as shares of the accuracy above chance, and drops of the probability, (draws, units) each."""
    right, sure = hits(columns, context.score), probabilities(columns, context.score)
    y, x = (weighted_mean(weights, each[:1] - each[1:]) for each in (right, sure))
    above = np.maximum(weighted_mean(weights, right[:1]) - context.chance, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return y / above, x


def _covariance(columns: Columns, context: Context) -> np.ndarray:
    """Covariance of the sampling errors of all shares, (units, units); all units answer the same samples.

    The error of a share y comes from the changed answers and from the accuracy that it is divided by: from sample to
    sample it varies as change - y (right - chance). Variances are those of answers lost, won or neither, with half an
    answer of each kind added: otherwise a unit without a changed answer would be certain. All pairs of units get the
    mean of their correlations, because a matrix of single estimates would be mostly noise, which its inverse amplifies.
    """
    right = hits(columns, context.score)
    changed = right[:1] - right[1:]
    n, units = columns.seen[1:], len(columns.units)
    above = np.nanmean(right[0]) - context.chance
    share = np.nanmean(changed, axis=1) / above
    off = np.where(np.isfinite(changed), changed - share[:, None] * (right[:1] - context.chance), 0.0)
    half_lost, half_won = (1 - share * (1 - context.chance)) ** 2 / 2, (1 + share * context.chance) ** 2 / 2
    squares = (off**2).sum(axis=1) + half_lost + half_won
    alike = off @ off.T / np.sqrt(np.outer(squares, squares))
    np.fill_diagonal(alike, 0)
    common = max(alike.sum() / (units * (units - 1)), 0.0)
    errors = np.sqrt(squares / (n + 1.5) / n) / above
    return np.asarray(np.outer(errors, errors) * (common + (1 - common) * np.eye(units)))


def _predicted(y: np.ndarray, x: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every A that is tried: predictions and their errors given A, (A, draws, units), and log-likelihoods.

    β is estimated by generalised least squares; the errors of the predictions include its error.
    """
    predicted, deviations, likelihood = [], [], []
    for a in _TRIED * np.diag(covariance).mean():
        whole = a * np.eye(len(covariance)) + covariance
        inverse = np.linalg.inv(whole)
        design = np.stack([np.ones_like(x), x], axis=-1)  # (draws, units, 2)
        weighed = inverse @ design
        information = design.swapaxes(1, 2) @ weighed
        # Where all units are as sure as each other there is no slope.
        known = np.linalg.pinv(information, rcond=1e-10, hermitian=True)
        beta = np.einsum("kij,kuj,ku->ki", known, weighed, y)
        line = np.einsum("kui,ki->ku", design, beta)
        predicted.append(line + a * (y - line) @ inverse)
        rest = design - a * weighed
        own = a - a**2 * np.diag(inverse)
        deviations.append(np.sqrt(np.maximum(own + np.einsum("kui,kij,kuj->ku", rest, known, rest), 0)))
        off = np.einsum("ku,uv,kv->k", y - line, inverse, y - line)
        spread = np.linalg.slogdet(whole)[1] - np.linalg.slogdet(known + 1e-300 * np.eye(2))[1]
        likelihood.append(-0.5 * (off + spread))
    return np.array(predicted), np.array(deviations), np.array(likelihood)
