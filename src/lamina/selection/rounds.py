"""A forecast of what a search will measure: rounds of made-up sets in place of the real ones.

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
    """Units that may be removed."""
    sizes: Sequence[int]
    prices: UnitPrices
    n_tokens: float
    """Tokens of the samples that choose."""


class Round(NamedTuple):
    """Sets that are measured together, on the same share of the samples."""

    candidates: Sequence[Candidate]
    share: float
    """Share of the samples that choose, or of those that judge, without those measured before."""
    is_judging: bool = False
