"""Shapley value of a unit: what it adds to models of other units, on average over all orders of removal.

With `local: k` only models that lack at most k units count. This is a semi-value: the mean over j < k of what the unit
adds to models that lack j other units. Pruning removes few units, and the values of ruined models would be noise.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from lamina.relevance import random_models
from lamina.relevance.columns import Columns, Context
from lamina.relevance.random_models import REMEDY as REMEDY
from lamina.relevance.random_models import Value

METRIC = {
    "pass_": "shapley",
    "column": "shapley",
    "help": "what the unit adds to models of the others, over all orders of removal",
}

undefined = partial(random_models.undefined, "shapley")


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """φ_u = Σ_S |S|! (n - |S| - 1)! / n! [v(S + u) - v(S)], (draws, units) [Zhang et al., arXiv 2409.14381]."""
    return random_models.mean_with_error("shapley", columns, weights, context.seed)


def estimate(n: int, value: Value, floor: float | None, options: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values by sampled permutations, (units, samples), and the standard error of their means, (units,).

    Parameters
    ----------
    floor
        Mean value up to which a model counts as the model without units; None for no such value.
    options
        An instance of `lamina.config.metrics.Shapley`.

    The error is over pairs of permutations, since the two permutations of a pair depend on each other.
    """
    sums, counts = marginals(value, orders(n, options.permutations, seed), options.local or n, floor)
    means = sums.sum(axis=0) / counts.sum(axis=0)[:, None]
    pairs = len(counts) // 2
    rest = (sums.mean(axis=2) - means.mean(axis=1) * counts).reshape(pairs, 2, n).sum(axis=1)
    error = np.sqrt(pairs / (pairs - 1) * (rest**2).sum(axis=0)) / counts.sum(axis=0)
    return means, error


def orders(n: int, permutations: int, seed: int) -> np.ndarray:
    """Antithetic permutations, (permutations, n): every second permutation is the reverse of the previous one."""
    generator = np.random.default_rng(seed)
    drawn = np.array([generator.permutation(n) for _ in range(permutations // 2)])
    return np.stack([drawn, drawn[:, ::-1]], axis=1).reshape(-1, n)


def marginals(
    value: Value, orders: Sequence[Sequence[int]] | np.ndarray, depth: int, floor: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of value by the removal of each unit, summed per order, (orders, units, samples), and how many, (orders,
    units).

    Units are removed in the given order, at most `depth` of them. An order is cut into chains of this length, and the
    last chain continues at the start of the order, so that units and places occur equally often. Once the mean value
    of a model is at most `floor`, this model and its submodels count as the model without units and are not evaluated.
    So the losses of an order of one chain add up to the value of the whole model less that of the empty model.
    """
    n, depth = len(orders[0]), min(depth, len(orders[0]))
    places = [[(start + i) % n for i in range(depth)] for start in range(0, n, depth)]
    chains = [(number, [int(order[i]) for i in at]) for number, order in enumerate(orders) for at in places]
    whole, empty = value([frozenset(), frozenset(range(n))])
    before = [whole] * len(chains)
    sums, counts = np.zeros((len(orders), n, len(whole))), np.zeros((len(orders), n))
    for step in range(depth):
        lacking = [frozenset(chain[: step + 1]) for _, chain in chains]
        asked = list(dict.fromkeys(lack for lack, left in zip(lacking, before, strict=True) if left is not empty))
        asked = [lack for lack in asked if len(lack) < n]
        values = dict(zip(asked, value(asked) if asked else [], strict=True))
        for number, (order, chain) in enumerate(chains):
            after = values.get(lacking[number], empty) if before[number] is not empty else empty
            if floor is not None and after.mean() <= floor:
                after = empty
            sums[order, chain[step]] += before[number] - after
            counts[order, chain[step]] += 1
            before[number] = after
    return sums, counts
