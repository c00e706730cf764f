"""How much better models are that keep a unit, among random ones that keep as many: no Shapley value.

One size alone is looked at, so the values do not add up to the model's.
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
    """Mean value with the unit kept less that with it dropped, (draws, units) [Siddiqui et al., arXiv 2407.16286]."""
    return random_models.mean_with_error("presence", columns, weights, context.seed)


def estimate(n: int, value: Value, floor: float | None, options: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Differences of means over drawn models, (units, samples), and the standard errors of their means, (units,).

    `options` is an instance of `lamina.config.metrics.Presence`; the `floor` has no part in it. Where there are no more
    sets than draws, all are taken, and there is no error.
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
    """At least `draws` sets of so many units (at least one, not all), all of them if they are no more.

    They are cut from permutations, so that every unit is dropped about as often as any other.
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
