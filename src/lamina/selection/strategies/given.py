"""Layers and edits that the configuration names: of a paper, or found by another tool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from lamina.errors import LaminaError
from lamina.models.units import Exchange, Repetition, parse_edit, units_of_layers
from lamina.options.entry import Filled, Spelt, option
from lamina.options.explain import invalid
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Given(Selector):
    """Removes the layers that you name: size n removes the first n of them. Measures nothing.

    `edits` are made at every size, so that a model can run some layers twice and lack others.
    """

    LIMIT = ", and only those in `layers` go"
    CHOICE = "the configuration named what was removed"

    strategy: Literal["given"] = "given"
    layers: list[Annotated[int, Spelt]] = option(
        "Layers in the order in which they go, negative ones counted from the end.", min_length=1
    )
    edits: list[Filled] = option(
        "What is changed in addition: `7x2` or `7-9x2` runs layers twice, `7-9x2~` does so with "
        "damping, `7<>8` exchanges two layers.",
        [],
        allowed="a list such as [7-9x2]",
        shown_default="none",
    )

    @model_validator(mode="after")
    def _check_edits(self) -> Self:
        for edit in self.edits:
            try:
                kind = type(parse_edit(edit))
            except LaminaError as error:
                raise invalid(str(error), "edits") from error
            if kind not in (Repetition, Exchange):
                raise invalid(
                    f"'{edit}' is no repetition and no exchange. Write '7-9x2' or '7<>8'; layers "
                    "to remove stand under `layers`, models to take layers from under `donors`.",
                    "edits",
                )
        return self

    def largest_removal(self, n_layers: int) -> int:
        return min(len(self.layers), super().largest_removal(n_layers))


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The first n layers of the list, or their sub-layers of one kind or of both; and the edits."""
    named_units = units_of_layers(request.given_layers, request.n_layers, request.kind)
    units = request.prices.take_enough(named_units, request.removed)
    return replace(previous, removed=request.removed, units=[*units, *request.given_edits])
