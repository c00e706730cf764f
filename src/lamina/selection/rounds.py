"""A forecast of what a search will measure: rounds of made-up sets in place of the real ones.

A strategy that searches may have a function `foresee_rounds(space, options)`, which returns them.
`lamina_workflow.cost` counts the work of measuring these sets. A search uses them to report how
many of its sets it has measured.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from lamina.engine.candidates import Candidate
from lamina.selection.plans import UnitPrices


class SearchSpace(NamedTuple):
    """What is known about a search before it runs."""

    units: Sequence[str]
    """Units that may be removed."""
    sizes: Sequence[int]
    prices: UnitPrices


class Round(NamedTuple):
    """Sets that are measured together, on the same share of the samples."""

    candidates: Sequence[Candidate]
    share: float
    """Share of the choosing samples, or of the judging ones, without those measured before."""
    is_judging: bool = False


def foresee_rounds(space: SearchSpace, options: Any) -> Iterable[Round]:
    """The rounds of a search; none if its strategy foresees none.

    options: Those of the selector.
    """
    strategy = import_module(f"{options.PACKAGE}.{options.strategy}")
    if not hasattr(strategy, "foresee_rounds"):
        return ()
    rounds: Iterable[Round] = strategy.foresee_rounds(space, options)
    return rounds


def count_sets(candidates: Iterable[Candidate]) -> int:
    """The number of different sets of units that candidates lack, without the base model."""
    return len({candidate.edits for candidate in candidates if candidate.edits})


def choosing_share(own: str, options: Any) -> float:
    """The share of the variants' own calibration that chooses; the rest judges."""
    return 1.0 if options.judge not in (None, own) else 1.0 - options.held_back
