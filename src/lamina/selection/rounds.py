"""What a search will measure, told before it runs: rounds of sets that stand for the true ones.

A strategy that searches has a function `foresee_rounds(space, options)`, which gives them.
`lamina_workflow.cost` counts the work of measuring them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lamina.engine.candidates import Candidate
from lamina.selection.plans import UnitPrices


class SearchSpace(NamedTuple):
    """What is known of a search before it runs."""

    units: Sequence[str]
    """Those that may be removed."""
    sizes: Sequence[int]
    prices: UnitPrices
    n_tokens: float
    """Of the samples that choose."""


class Round(NamedTuple):
    """Sets that are measured together, on the same share of the samples."""

    candidates: Sequence[Candidate]
    share: float
    """Of the samples that choose, or of those that judge; without those that the sets have seen."""
    is_judging: bool = False
