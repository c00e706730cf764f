"""How sure scores are of the right choice: a softmax, and the temperature at which the model is calibrated."""

import numpy as np

# Bisection of log(1 / τ): τ from e^-14, next to accuracy, to e^10, next to chance.
_STEEPEST, _FLATTEST, _HALVINGS = 14.0, -10.0, 60


def probability(scores: np.ndarray, tau: float) -> np.ndarray:
    """Softmax over the last axis of scores / τ at its first entry, the gold choice; NaN where there are no scores.

    A score that is NaN means that there is no such choice.
    """
    leads = np.where(np.isnan(scores), -np.inf, scores - scores[..., :1]) / tau
    with np.errstate(over="ignore", invalid="ignore"):
        sure = 1 / (1 + np.exp(leads[..., 1:]).sum(axis=-1))
    sure = np.where(np.isneginf(scores[..., 0]), 0.0, sure)
    return np.asarray(np.where(np.isnan(scores[..., 0]), np.nan, sure))


def temperature(scores: np.ndarray) -> float:
    """The τ under which the right answers are likeliest, from scores (samples, choices), gold first.

    The likelihood is concave in 1 / τ, so its slope is bisected: the mean over samples of gold's score less the mean
    score under the softmax. τ cannot be fitted by a mean probability that equals accuracy: every τ near 0 gives that.
    """
    finite = scores[np.isfinite(scores[:, 0])]
    leads = np.where(np.isnan(finite), -np.inf, finite - finite[:, :1])
    finite = np.where(np.isfinite(leads), leads, 0.0)

    def slope(steepness: float) -> float:
        powers = leads * steepness
        shares = np.exp(powers - powers.max(axis=1, keepdims=True))
        return float(-((shares * finite).sum(axis=1) / shares.sum(axis=1)).mean())

    low, high = _FLATTEST, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(np.exp(middle)) > 0 else (low, middle)
    return float(np.exp(-low))
