"""The deepest layers except the last one [arXiv 2403.17887, section 4.4]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.models.units import all_units
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Deepest(Selector):
    """Removes the deepest layers except for the last one; measures nothing."""

    LIMIT = ", and the last layer is kept"
    PROPOSES = True

    strategy: Literal["deepest"] = "deepest"

    def largest_removal(self, n_layers: int) -> int:
        return sum(self.free(n_layers)[:-1])


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """Layers L-1-n … L-2, from the deepest up; protected layers are skipped."""
    deepest_first = reversed(all_units(request.n_layers - 1, request.kind))
    removable = [unit for unit in deepest_first if request.is_removable(unit)]
    units = request.prices.take_enough(removable, request.removed)
    return replace(previous, removed=request.removed, units=units)
