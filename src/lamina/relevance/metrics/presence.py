"""How much better models with a unit are than models without it, among random models of one size.

This is not a Shapley value: all models have one size, so the values do not add up to the value of the whole model.
"""

import math
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from lamina.relevance import random_models
from lamina.relevance.columns import Columns, Context
from lamina.relevance.random_models import REMEDY as REMEDY
from lamina.relevance.random_models import Value

METRIC = {"pass_": "presence", "column": "presence", "help": "how much better random cut models are that keep the unit"}

undefined = partial(random_models.undefined, "presence")


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean value of models with the unit less that of models without it, (draws, units) [arXiv 2407.16286]."""
    return random_models.mean_with_error("presence", columns, weights, context.seed)


def estimate(n: int, value: Value, floor: float | None, options: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Differences of means over drawn models, (units, samples), and the standard errors of their means, (units,).

    `options` is an instance of `lamina.config.metrics.Presence`; `floor` is not used. If there are no more sets than
    draws, all sets are measured, and the error is 0.
    """
    lacking = drawn(n, n - round(options.kept * n), options.draws, seed)
    values = value(lacking)
    dropped = np.array([[unit in lack for unit in range(n)] for lack in lacking])
    means, variance = [], np.zeros(n)
    for group in (~dropped, dropped):
        count = group.sum(axis=0)
        means.append((group / count).T @ values)
        rest = np.where(group, values.mean(axis=1)[:, None] - means[-1].mean(axis=1), 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance += (rest**2).sum(axis=0) / (count - 1) / count
    everything = len(lacking) == math.comb(n, len(lacking[0]))
    return means[0] - means[1], np.zeros(n) if everything else np.sqrt(variance)


def drawn(n: int, lacking: int, draws: int, seed: int) -> list[frozenset[int]]:
    """At least `draws` sets of `lacking` units (at least one unit, not all); all sets if there are at most `draws`.

    They are cut from permutations, so that all units are dropped about equally often.
    """
    lacking = min(max(1, lacking), n - 1)
    if math.comb(n, lacking) <= draws:
        return [frozenset(lack) for lack in combinations(range(n), lacking)]
    generator = np.random.default_rng(seed)
    sets: list[frozenset[int]] = []
    while len(sets) < draws:
        order = generator.permutation(n).tolist()
        sets += [frozenset(order[i : i + lacking]) for i in range(0, n - lacking + 1, lacking)]
    return sets
