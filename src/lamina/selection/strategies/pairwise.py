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


def find(search: Search, units: Sequence[str], sizes: Sequence[int], options: Any) -> dict[int, Candidate]:
    """The best set of each size by the quadratic model. `units` are the units that may be removed."""
    sets = [frozenset[str](), *(frozenset(some) for size in (1, 2) for some in combinations(units, size))]
    search.best([Candidate(each) for each in sets], 1, 0)
    losses, _ = search.trials.losses([Candidate(each) for each in sets], search.numbers)
    alone, together = effects(dict(zip(sets, losses, strict=True)), units)
    return {
        size: Candidate(frozenset(units[number] for number in least(alone, together, size)))
        for size in sizes
        if size <= len(units)
    }


def effects(losses: dict[frozenset[str], np.ndarray], units: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """a, (units,), and b, (units, units), symmetric with a diagonal of 0, from the losses of samples by set.

    b is shrunk towards its mean by the share of its variance that sampling explains.
    """
    import numpy as np

    base = losses[frozenset()]
    single = np.array([losses[frozenset({unit})] - base for unit in units])
    rows, columns = np.triu_indices(len(units), 1)
    pairs = np.array(
        [
            losses[frozenset({units[i], units[j]})] - base - single[i] - single[j]
            for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
        ]
    )
    together = np.zeros((len(units), len(units)))
    if len(pairs):
        means = pairs.mean(axis=1)
        noise = float((pairs.var(axis=1, ddof=1) / pairs.shape[1]).mean()) if pairs.shape[1] > 1 else 0.0
        seen = float(means.var())
        kept = max(0.0, 1 - noise / seen) if seen else 1.0
        together[rows, columns] = together[columns, rows] = means.mean() + kept * (means - means.mean())
    return single.mean(axis=1), together


def least(alone: np.ndarray, together: np.ndarray, size: int) -> list[int]:
    """Numbers of the `size` units with the least Σ a_i + Σ_{i<j} b_ij: a mixed-integer linear programme.

    It is solved exactly, or, from some 60 units on, as well as SECONDS allow.

    x_i says that unit i goes, and y_ij, between 0 and 1, that i and j both go: y ≥ x_i + x_j - 1 holds it up where b is
    positive, y ≤ x_i and y ≤ x_j hold it down where b is negative.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_array

    count = len(alone)
    pairs = list(combinations(range(count), 2))
    costs = np.concatenate([alone, [together[pair] for pair in pairs]])
    matrix, upper = lil_array((3 * len(pairs) + 1, count + len(pairs))), np.zeros(3 * len(pairs) + 1)
    for number, (i, j) in enumerate(pairs):
        y, row = count + number, 3 * number
        matrix[row, [i, j]], matrix[row, y], upper[row] = 1, -1, 1
        for place, x in ((row + 1, i), (row + 2, j)):
            matrix[place, y], matrix[place, x] = 1, -1
    matrix[-1, :count], upper[-1] = 1, size
    lower = np.full(len(upper), -np.inf)
    lower[-1] = size
    whole = np.concatenate([np.ones(count), np.zeros(len(pairs))])
    held = LinearConstraint(matrix.tocsr(), lower, upper)
    found = milp(costs, integrality=whole, bounds=Bounds(0, 1), constraints=held, options={"time_limit": SECONDS})
    return [int(number) for number in np.flatnonzero(found.x[:count] > 0.5)]
