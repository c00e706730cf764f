"""Evolutionary search: one parent, mutated children, selection in stages [arXiv 2410.14649].

A mutation swaps a removed unit with a present one, min(U{1..3}, U{1..3}) times. Where prices
differ, more units are removed until they have the price of the size, or some come back. Every stage
draws new tokens, the same for all its children.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.engine.candidates import Candidate
from lamina.options.entry import Filled, option, seed_option
from lamina.options.explain import invalid
from lamina.options.metrics import MetricName
from lamina.options.selectors import (
    Selector,
    held_back_option,
    metric_option,
    repair_option,
)

if TYPE_CHECKING:
    from numpy.random import Generator

    from lamina.selection.plans import UnitPrices
    from lamina.selection.rounds import Round, SearchSpace
    from lamina.selection.trials import Search


class Evolutionary(Selector):
    """Mutates one set of each size and keeps the best child, after EvoPress (arXiv 2410.14649).

    A child swaps one to three removed units with as many present ones. Children are selected in
    stages, fewer of them on more tokens; the parent competes in the last stage. Sets are compared
    on a seeded part of the samples, and the winner is judged on the rest.
    """

    SEARCHES = True

    strategy: Literal["evolutionary"] = "evolutionary"
    metric: MetricName = metric_option(("accuracy", "output_kl"))
    offspring: int = option(
        "Children of a generation; the first parent is the best of as many drawn sets.", 32, ge=1
    )
    generations: int | None = option(
        "Generations; `null` takes k (L - k) / 1.5 of them to remove k of L units.", None, ge=1
    )
    stages: list[
        Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
    ] = option(
        "How many children each stage keeps, and on how many tokens they are compared.",
        [[2, 2048], [1, 32768]],
        allowed="pairs [kept, tokens] such as [[2, 2048], [1, 32768]], the last keeping 1",
        min_length=1,
    )
    held_back: float = held_back_option()
    seed: int = seed_option()
    repair: Filled | None = repair_option()

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        kept_children = [n_kept for n_kept, _ in self.stages]
        if kept_children[-1] != 1 or kept_children != sorted(kept_children, reverse=True):
            raise invalid(
                f"{self.stages} keeps {', '.join(map(str, kept_children))} children. Each stage "
                "must keep at most as many as the one before it, and the last one 1, as in [[2, "
                "2048], [1, 32768]].",
                "stages",
            )
        return self


# Draws for each child that is wanted, after which the neighbourhood counts as used up.
DRAWS_PER_CHILD = 10
# Swaps of a removed unit with a present one, for each generation.
SWAPS_PER_GENERATION = 1.5

SelectChildren = Callable[[list[Candidate], int, int, int, int], list[Candidate]]


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Evolutionary
) -> dict[int, Candidate]:
    """The last parent of each size. Sizes are searched one after the other.

    units: Those that may be removed.
    """
    import numpy as np

    parent_by_size: dict[int, Candidate] = {}
    for size in sizes:
        generator = np.random.default_rng([options.seed, size])
        mutations = Mutations(units, size, search.trials.prices, generator)
        select = partial(_select_measured, search, generator)
        parent_by_size[size] = _evolve(mutations, options, select)
    return parent_by_size


def _evolve(mutations: Mutations, options: Evolutionary, select: SelectChildren) -> Candidate:
    """The last parent: each generation's children go through all stages, and the best is next.

    select: Called with the children of a stage, how many of them it keeps, on how many tokens, the
        generation and the stage. Returns those that it keeps, best first.
    """
    parent_candidate: Candidate | None = None
    for generation in range(_count_generations(mutations, options) + 1):
        if parent_candidate:
            children = mutations.draw_children(parent_candidate, options.offspring)
        else:
            children = mutations.draw_first(options.offspring)
        for stage, (n_kept, n_tokens) in enumerate(options.stages, start=1):
            if stage == len(options.stages) and parent_candidate:
                children.append(parent_candidate)
            if children:
                children = select(children, n_kept, n_tokens, generation, stage)
        parent_candidate = children[0]
    assert parent_candidate is not None
    return parent_candidate


def _select_measured(
    search: Search,
    generator: Generator,
    children: list[Candidate],
    n_kept: int,
    n_tokens: int,
    generation: int,
    stage: int,
) -> list[Candidate]:
    """The children with the least loss on freshly drawn samples."""
    drawn_samples = search.draw_samples(n_tokens, generator)
    return search.select_best(children, n_kept, generation, str(stage), drawn_samples)


def foresee_rounds(space: SearchSpace, options: Evolutionary) -> Iterator[Round]:
    """The stages of every generation, whose first child is the next parent."""
    import numpy as np

    forecast = _Forecast(space.n_tokens)
    for size in space.sizes:
        generator = np.random.default_rng([options.seed, size])
        mutations = Mutations(space.units, size, space.prices, generator)
        parent = _evolve(mutations, options, forecast.select)
        forecast.measure([parent], space.n_tokens)
    forecast.measure([Candidate()], space.n_tokens)
    yield from forecast.rounds


class _Forecast:
    """The rounds of searches whose first children win, without what was measured before."""

    def __init__(self, n_tokens: float) -> None:
        self.rounds: list[Round] = []
        self._n_tokens = n_tokens
        self._unseen_shares = defaultdict[Candidate, float](lambda: 1.0)

    def select(
        self, children: list[Candidate], n_kept: int, n_tokens: int, generation: int, stage: int
    ) -> list[Candidate]:
        """Count a stage, and keep the first children."""
        self.measure(children, n_tokens)
        return children[:n_kept]

    def measure(self, candidates: Sequence[Candidate], n_tokens: float) -> None:
        """Count the measurement of candidates on samples with so many tokens."""
        from lamina.selection.rounds import Round

        share = min(1.0, n_tokens / self._n_tokens)
        measured = [candidate for candidate in candidates if self._unseen_shares[candidate]]
        unseen = sum(self._unseen_shares[candidate] for candidate in measured)
        for candidate in measured:
            self._unseen_shares[candidate] *= 1 - share
        self.rounds.append(Round(measured, share * unseen / max(1, len(measured))))


def _count_generations(mutations: Mutations, options: Evolutionary) -> int:
    """Generations after the first parent: those of the options, else k (L - k) / 1.5.

    k of L units are removed.
    """
    n_units = len(mutations.units)
    # With units of several prices, k is what a size comes to on average.
    n_removed = round(mutations.size * n_units / mutations.prices.sum_prices(mutations.units))
    n_swaps = n_removed * (n_units - n_removed)
    return options.generations or max(1, round(n_swaps / SWAPS_PER_GENERATION))


@dataclass(frozen=True)
class Mutations:
    """Draws sets of one size: at random, or near a parent."""

    units: Sequence[str]
    size: int
    prices: UnitPrices
    generator: Generator

    def draw_first(self, n_children: int) -> list[Candidate]:
        """At most `n_children` different random sets."""
        children: dict[Candidate, None] = {}
        for _ in range(DRAWS_PER_CHILD * n_children):
            if len(children) == n_children:
                break
            order = self.generator.permutation(self.units).tolist()
            children[Candidate(frozenset(self.prices.take_enough(order, self.size)))] = None
        return list(children)

    def draw_children(self, parent: Candidate, n_children: int) -> list[Candidate]:
        """At most `n_children` different mutations of a parent, none of them the parent itself."""
        children: dict[Candidate, None] = {}
        for _ in range(DRAWS_PER_CHILD * n_children):
            if len(children) == n_children:
                break
            present_units = [unit for unit in self.units if unit not in parent.edits]
            units = self._swap_removed(parent, present_units)
            if units != parent.edits:
                children[Candidate(units)] = None
        return list(children)

    def _swap_removed(self, parent: Candidate, present_units: Sequence[str]) -> frozenset[str]:
        """The parent's units with one to three removed ones exchanged for present ones."""
        removed_units = sorted(parent.edits)
        drawn_swaps = self.generator.integers(1, 4, size=2).tolist()
        n_swaps = min(*drawn_swaps, len(removed_units), len(present_units))
        shuffled_removed = self.generator.permutation(removed_units).tolist()
        shuffled_present = self.generator.permutation(present_units).tolist()
        order = [
            *shuffled_present[:n_swaps],
            *shuffled_removed[n_swaps:],
            *shuffled_present[n_swaps:],
            *shuffled_removed[:n_swaps],
        ]
        return frozenset(self.prices.take_enough(order, self.size))
