"""Evolutionary search [EvoPress, arXiv 2410.14649]: one parent, its mutated children, selection in stages.

A mutation swaps a removed unit with a present one, min(U{1..3}, U{1..3}) times. Where prices differ, more units go
until they have the price of the size, or some come back. Every stage draws new tokens, the same for all its children.
With donors, half of the mutations replace a present layer by a donor's layer, or undo this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lamina.config.entry import Filled, option, seed_option
from lamina.config.explain import wrong
from lamina.config.metrics import MetricName
from lamina.config.selectors import (
    Selector,
    donors_option,
    held_back_option,
    metric_option,
    repair_option,
)
from lamina.engine.candidates import Candidate
from lamina.models.units import replaced, replacement

if TYPE_CHECKING:
    from numpy.random import Generator

    from lamina.selection.plans import Prices
    from lamina.selection.trials import Search


class Evolutionary(Selector):
    """Mutates one set of each size and keeps the best child, after EvoPress (arXiv 2410.14649).

    A child swaps one to three units that are gone with as many that are there. Children are selected in stages, fewer
    of them on more tokens; the parent competes in the last stage. It compares sets on a seeded part of the samples and
    judges the winner on the rest.
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
    donors: list[Filled] = donors_option()

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        kept = [keep for keep, _ in self.stages]
        if kept[-1] != 1 or kept != sorted(kept, reverse=True):
            raise wrong(
                f"{self.stages} keeps {', '.join(map(str, kept))}: stages keep fewer and fewer children, the last "
                "one 1. Write such as [[2, 2048], [1, 32768]].",
                "stages",
            )
        return self


# Draws for each child that is wanted, after which the neighbourhood counts as used up.
TRIES = 10
# Swaps of a unit that is gone with one that is there, for each generation.
SWAPS = 1.5


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Any
) -> dict[int, Candidate]:
    """The last parent of each size; each size has its own search. `units` are the units that may be removed."""
    return {size: _evolved(search, units, size, options) for size in sizes}


def _evolved(search: Search, units: Sequence[str], size: int, options: Any) -> Candidate:
    import numpy as np

    generator = np.random.default_rng([options.seed, size])
    parent: Candidate | None = None
    prices, count = search.trials.prices, len(units)
    going = round(size * count / prices.of(units))  # on average, if units have several prices
    for generation in range(
        (options.generations or max(1, round(going * (count - going) / SWAPS))) + 1
    ):
        children = _children(parent, units, size, options, prices, generator)
        for stage, (keep, tokens) in enumerate(options.stages, start=1):
            if stage == len(options.stages) and parent:
                children.append(parent)
            if children:
                children = search.best(
                    children, keep, generation, str(stage), search.draw(tokens, generator)
                )
        parent = children[0]
    assert parent is not None
    return parent


def _children(
    parent: Candidate | None,
    units: Sequence[str],
    size: int,
    options: Any,
    prices: Prices,
    generator: Generator,
) -> list[Candidate]:
    """Different sets, at most `offspring`: the parent with some units swapped, or random sets without a parent."""
    children: dict[Candidate, None] = {}
    for _ in range(TRIES * options.offspring):
        if len(children) == options.offspring:
            break
        if parent is None:
            removed = frozenset(prices.enough(generator.permutation(units).tolist(), size))
        else:
            given = {unit for unit in parent.removed if replacement(unit)}
            gone, there = (
                sorted(parent.removed - given),
                [unit for unit in units if unit not in parent.removed],
            )
            if options.donors and there and generator.integers(2):
                unit, donor = generator.choice(there), generator.choice(["", *options.donors])
                same = {each for each in given if each.split(".")[0] == unit}
                removed = parent.removed - same | ({replaced(unit, donor)} if donor else set())
                if removed != parent.removed:
                    children[Candidate(removed)] = None
                continue
            swaps = min(*generator.integers(1, 4, size=2).tolist(), len(gone), len(there))
            back, out = (generator.permutation(part).tolist() for part in (gone, there))
            order = [*out[:swaps], *back[swaps:], *out[swaps:], *back[:swaps]]
            removed = frozenset(prices.enough(order, size))
            removed |= {unit for unit in given if unit.split(".")[0] not in removed}
        if parent is None or removed != parent.removed:
            children[Candidate(removed)] = None
    return list(children)
