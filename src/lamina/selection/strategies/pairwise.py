"""Sets by a quadratic model of the loss: what single removals add, and what pairs of them add to that.

Single losses do not add up, so the removal of every pair of units is measured as well. For a set R of units

    loss(R) ≈ loss + Σ a_i + Σ_{i<j} b_ij,   a_i = L(-i) - L,   b_ij = L(-i-j) - L(-i) - L(-j) + L,

whose least value over sets of one size is a binary linear programme [the model is that of arXiv 2602.00161].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.entry import seed_option
from lamina.config.metrics import MetricName
from lamina.config.selectors import Selector, held_back_option, metric_option
from lamina.engine.candidates import Candidate

if TYPE_CHECKING:
    import numpy as np

    from lamina.selection.trials import Search


MARGIN = 0.999  # of the lowest price: the solver's tolerance is 1e-6
SECONDS = 120  # for the best set of one size; 30 units take 5


class Pairwise(Selector):
    """Measures the removal of every unit and of every pair of units, and takes the set that their sum says is best.

    Of L units, L (L - 1) / 2 pairs are measured: about ten sweeps of single removals at 30 layers. The sets are judged
    on a seeded part of the samples.
    """

    SEARCHES = True
    CHOICE = "the effects of single removals and of pairs were measured, and the set went whose sum is least"

    strategy: Literal["pairwise"] = "pairwise"
    metric: MetricName = metric_option(("perplexity", "output_kl"))
    held_back: float = held_back_option()
    seed: int = seed_option()


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Any
) -> dict[int, Candidate]:
    """The best set of each size by the quadratic model. `units` are the units that may be removed."""
    import numpy as np

    sets = [
        frozenset[str](),
        *(frozenset(some) for size in (1, 2) for some in combinations(units, size)),
    ]
    search.best([Candidate(each) for each in sets], 1, 0)
    losses, _ = search.trials.losses([Candidate(each) for each in sets], search.numbers)
    alone, together = effects(dict(zip(sets, losses, strict=True)), units)
    prices = np.array([search.trials.prices.of([unit]) for unit in units])
    found = {size: least(alone, together, size, prices) for size in sizes}
    return {
        size: Candidate(frozenset(units[number] for number in numbers))
        for size, numbers in found.items()
    }


def effects(
    losses: dict[frozenset[str], np.ndarray], units: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """a, (units,), and b, (units, units), symmetric with a diagonal of 0, from the losses of samples by set.

    b is shrunk towards its mean by the share of its variance that sampling explains.
    """
    import numpy as np

    base = losses[frozenset()]
    single = np.array([losses[frozenset({unit})] - base for unit in units])
    i, j = np.triu_indices(len(units), 1)
    together = np.zeros((len(units), len(units)))
    if len(i):
        both = [
            losses[frozenset(pair)] for pair in combinations(units, 2)
        ]  # in the order of i and j
        pairs = np.array(both) - base - single[i] - single[j]
        means = pairs.mean(axis=1)
        noise = (
            float((pairs.var(axis=1, ddof=1) / pairs.shape[1]).mean())
            if pairs.shape[1] > 1
            else 0.0
        )
        kept = max(0.0, 1 - noise / means.var()) if means.var() else 1.0
        together[i, j] = together[j, i] = means.mean() + kept * (means - means.mean())
    return single.mean(axis=1), together


def least(
    alone: np.ndarray, together: np.ndarray, size: int, prices: np.ndarray | float = 1.0
) -> list[int]:
    """Numbers of the units with the least Σ a_i + Σ_{i<j} b_ij: a mixed-integer linear programme.

    Their `prices` are at least `size` together, and above it by less than the lowest price. So none of them could stay.

    It is solved exactly, or, from some 60 units on, as well as SECONDS allow.

    x_i says that unit i goes, and y_ij, between 0 and 1, that i and j both go: y ≥ x_i + x_j - 1 holds it up where b is
    positive, y ≤ x_i and y ≤ x_j hold it down where b is negative.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import eye_array, hstack, vstack

    i, j = np.triu_indices(len(alone), 1)
    x, y = eye_array(len(alone), format="csr"), eye_array(len(i))
    between = vstack([hstack([x[i] + x[j], -y]), hstack([-x[i], y]), hstack([-x[j], y])])
    held = LinearConstraint(between, ub=np.repeat([1, 0, 0], len(i)))
    counted = np.repeat([1, 0], [len(alone), len(i)])
    priced = np.concatenate([np.broadcast_to(prices, len(alone)), np.zeros(len(i))])
    enough = LinearConstraint(priced, size, size + MARGIN * np.min(prices))
    limits = [held, enough] if len(i) else [enough]
    costs = np.concatenate([alone, together[i, j]])
    found = milp(
        costs,
        integrality=counted,
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"time_limit": SECONDS},
    )
    return [int(number) for number in np.flatnonzero(found.x[: len(alone)] > 0.5)]
