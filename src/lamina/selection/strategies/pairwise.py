"""Find sets by a quadratic model of the loss, with effects of single units and of pairs.

The losses of single removals do not add up, so the removal of every pair of units is measured too.
For a set R of units

    loss(R) ≈ loss + Σ a_i + Σ_{i<j} b_ij,   a_i = L(-i) - L,   b_ij = L(-i-j) - L(-i) - L(-j) + L.

Its minimum over sets of one size is a binary linear programme [the model is that of arXiv
2602.00161].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from lamina.engine.candidates import Candidate
from lamina.options.entry import seed_option
from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, held_back_option, metric_option

if TYPE_CHECKING:
    import numpy as np

    from lamina.selection.rounds import Round, SearchSpace
    from lamina.selection.trials import Search


PRICE_MARGIN = 0.999  # of the lowest price: the solver's tolerance is 1e-6
INFINITY = 1e3  # times the largest finite loss: the solver takes finite numbers only
SOLVER_SECONDS = 120  # for the best set of one size; 30 units take 5


class Pairwise(Selector):
    """Measures removals of all units and pairs, and takes the set with the lowest predicted loss.

    L units have L (L - 1) / 2 pairs. At 30 layers, these cost about ten sweeps of single removals.
    The final sets are measured on held-back samples, which `seed` draws.
    """

    SEARCHES = True
    CHOICE = (
        "the effects of single removals and of pairs were measured, and the set with the least sum "
        "was removed"
    )

    strategy: Literal["pairwise"] = "pairwise"
    metric: MetricName = metric_option(("perplexity", "output_kl"))
    held_back: float = held_back_option()
    seed: int = seed_option()


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Pairwise
) -> dict[int, Candidate]:
    """The best set of each size according to the quadratic model.

    `units` are the units that may be removed.
    """
    import numpy as np

    candidates = _list_candidates(units)
    search.select_best(candidates, 1, 0)
    set_losses, _ = search.trials.measure_losses(candidates, search.sample_indices)
    unit_sets = [candidate.edits for candidate in candidates]
    single_effects, pair_effects = estimate_effects(
        dict(zip(unit_sets, set_losses, strict=True)), units
    )
    unit_prices = np.array([search.trials.prices.sum_prices([unit]) for unit in units])
    set_by_size: dict[int, Candidate] = {}
    for size in sizes:
        unit_indices = minimise(single_effects, pair_effects, size, unit_prices)
        set_by_size[size] = Candidate(frozenset(units[index] for index in unit_indices))
    return set_by_size


def foresee_rounds(space: SearchSpace, options: Pairwise) -> Iterator[Round]:
    """All units and pairs, and one set per size."""
    from lamina.selection.rounds import Round

    yield Round(_list_candidates(space.units), 1.0)
    sets = [space.prices.take_enough(space.units, size) for size in space.sizes]
    yield Round([Candidate(frozenset(units)) for units in sets], 1.0)


def _list_candidates(units: Sequence[str]) -> list[Candidate]:
    """The complete model, and the model without each unit and without each pair of units."""
    sets = [frozenset[str]()]
    sets += [frozenset({unit}) for unit in units]
    sets += [frozenset(pair) for pair in combinations(units, 2)]
    return [Candidate(removed) for removed in sets]


def estimate_effects(
    losses_by_set: dict[frozenset[str], np.ndarray], units: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """a, (units,), and b, (units, units), symmetric with a diagonal of 0.

    losses_by_set: The losses (samples,) of no unit removed, of every unit, and of every pair.

    b is shrunk towards its mean by the share of its variance that sampling noise explains. A unit
    without which a loss is infinite has b = 0: its effect is large enough with any other.
    """
    import numpy as np

    single_losses = np.array([losses_by_set[frozenset({unit})] for unit in units])
    pair_losses = np.array([losses_by_set[frozenset(pair)] for pair in combinations(units, 2)])
    is_finite = np.isfinite(single_losses).all(axis=1)
    largest_loss = INFINITY * single_losses[np.isfinite(single_losses)].max(initial=1.0)
    base_losses = np.minimum(losses_by_set[frozenset()], largest_loss)
    single_effects = np.minimum(single_losses, largest_loss) - base_losses

    pair_effects = np.zeros((len(units), len(units)))
    i, j = np.triu_indices(len(units), 1)  # the order of `combinations`
    is_pair_finite = is_finite[i] & is_finite[j]
    i, j = i[is_pair_finite], j[is_pair_finite]
    if len(i):
        pair_losses = np.minimum(pair_losses[is_pair_finite], largest_loss)
        pair_terms = pair_losses - base_losses - single_effects[i] - single_effects[j]
        pair_effects[i, j] = pair_effects[j, i] = _shrink_to_mean(pair_terms)
    return single_effects.mean(axis=1), pair_effects


def _shrink_to_mean(values: np.ndarray) -> np.ndarray:
    """Means over samples, (n,), of `values` (n, samples), shrunk by their sampling noise."""
    means = values.mean(axis=1)
    n_samples = values.shape[1]
    if n_samples < 2 or not means.var():
        return means
    noise_variance = float((values.var(axis=1, ddof=1) / n_samples).mean())
    share_kept = max(0.0, 1 - noise_variance / means.var())
    return means.mean() + share_kept * (means - means.mean())


def minimise(
    single_effects: np.ndarray,
    pair_effects: np.ndarray,
    size: int,
    prices: np.ndarray | float = 1.0,
) -> list[int]:
    """Indices of the units with the least Σ a_i + Σ_{i<j} b_ij: a mixed-integer linear programme.

    Their `prices` sum to at least `size`, and exceed it by less than the lowest price, so that no
    unit is superfluous. The solution is exact up to some 60 units; beyond, it is the best within
    SOLVER_SECONDS.

    x_i says that unit i is removed, and y_ij, between 0 and 1, that i and j both are. Where b is
    positive, y ≥ x_i + x_j - 1 bounds y from below; where b is negative, y ≤ x_i and y ≤ x_j bound
    it from above.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import eye_array, hstack, vstack

    n_units = len(single_effects)
    i, j = np.triu_indices(n_units, 1)
    n_pairs = len(i)
    unit_prices = np.broadcast_to(prices, n_units)
    variable_prices = np.concatenate([unit_prices, np.zeros(n_pairs)])
    constraints = [LinearConstraint(variable_prices, size, size + PRICE_MARGIN * np.min(prices))]
    if n_pairs:
        x = eye_array(n_units, format="csr")
        y = eye_array(n_pairs)
        coupling = vstack([hstack([x[i] + x[j], -y]), hstack([-x[i], y]), hstack([-x[j], y])])
        upper_bounds = np.repeat([1, 0, 0], n_pairs)
        constraints.insert(0, LinearConstraint(coupling, ub=upper_bounds))
    solution = milp(
        np.concatenate([single_effects, pair_effects[i, j]]),
        integrality=np.repeat([1, 0], [n_units, n_pairs]),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": SOLVER_SECONDS},
    )
    return [int(index) for index in np.flatnonzero(solution.x[:n_units] > 0.5)]
