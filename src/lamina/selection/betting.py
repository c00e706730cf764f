"""A sequential test that may be looked at after every sample: betting on bounded values drawn without replacement."""

import numpy as np

# Shares of the capital put at stake, from cautious to bold. The gambler's capital is the mean over all of them, so one
# that suits the data makes up for the others at the price of log(8) in the evidence needed.
STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])


def log_evidence(values: np.ndarray, count: int, low: float, high: float, mean: float) -> float:
    """Logarithm of the evidence that the mean of a finite population is above `mean`.

    Parameters
    ----------
    values
        (n,) values drawn so far, in the order of a random permutation of the population's `count` values.
    low, high
        Bounds of every value.

    The evidence is a capital process: if the population's mean is at most `mean`, the chance that it ever reaches 1/α,
    over all n, is at most α (Ville's inequality). The bets are those of Waudby-Smith and Ramdas, Estimating means of
    bounded random variables by betting (2024), section 5, for sampling without replacement, with a fixed mixture of
    stakes. The evidence is infinite if the values make the null hypothesis impossible.
    """
    share = (np.asarray(values, dtype=float) - low) / (high - low)
    null = (mean - low) / (high - low)
    n = len(share)
    before = np.concatenate([[0.0], np.cumsum(share)])
    # What the remaining values average to at most, if the null hypothesis holds.
    rest = (count * null - before[:n]) / (count - np.arange(n))
    left = count - n
    if count * null - before[n] < -1e-9 or (left == 0 and before[n] > count * null + 1e-9):
        return float("inf")
    rest = np.maximum(rest, 1e-12)
    # At a null mean of 1 or more nothing can speak against it; the bet is then not made.
    gain = np.where(rest >= 1, 0.0, share / rest - 1)
    capital = np.log1p(STAKES[:, None] * gain[None]).sum(axis=1)
    return float(np.logaddexp.reduce(capital) - np.log(len(STAKES)))
