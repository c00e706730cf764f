"""Layers that the configuration names: a set of a paper, or one that another tool found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from lamina.models.units import units_of_layers
from lamina.options.entry import Spelt, option
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Given(Selector):
    """Removes the layers that you name: size n removes the first n of them. Measures nothing."""

    LIMIT = ", and only those in `layers` go"
    CHOICE = "the configuration named what was removed"

    strategy: Literal["given"] = "given"
    layers: list[Annotated[int, Spelt]] = option(
        "Layers in the order in which they go, negative ones counted from the end.", min_length=1
    )

    def largest_removal(self, n_layers: int) -> int:
        return min(len(self.layers), super().largest_removal(n_layers))


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The first n layers of the list, or the sub-layers of one kind or of both in them."""
    named_units = units_of_layers(request.given_layers, request.n_layers, request.kind)
    units = request.prices.take_enough(named_units, request.removed)
    return replace(previous, removed=request.removed, units=units)
