"""Layers and edits that the configuration lists, from a paper or another tool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from lamina.errors import LaminaError
from lamina.models.units import SUBLAYERS, Exchange, Repetition, parse_edit, units_of_layers
from lamina.options.entry import Filled, Spelt, option
from lamina.options.explain import invalid
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Given(Selector):
    """Makes the edits and removes the layers that you name; measures nothing.

    `edits` are made at every size. Size n also removes the first n of `layers`, and one more for
    each layer that the edits repeat.
    """

    LIMIT = ", and only those in `layers` are removed"
    MOVES = True
    CHOICE = "the configuration named what was removed"

    strategy: Literal["given"] = "given"
    layers: list[Annotated[int, Spelt]] = option(
        "Layers to remove, in this order; negative numbers count from the end. Needed unless "
        "there are `edits`.",
        [],
    )
    edits: list[Filled] = option(
        "Other edits: `7x2` or `7-9x2` runs layers twice, `7-9x2~` does so with damping, `7<>8` "
        "swaps two layers.",
        [],
        allowed="a list such as [7-9x2]",
        shown_default="none",
    )

    @model_validator(mode="after")
    def _check_edits(self) -> Self:
        if not self.layers and not self.edits:
            raise invalid(
                "[] is not allowed without `edits`. Write the layers to remove in their order, "
                "such as [7, 3].",
                "layers",
            )
        if self.edits and self.units in SUBLAYERS:
            raise invalid(
                f"edits move whole layers, but the sizes of this selector count {self.units} "
                "sub-layers. Write units: layer or units: both, or leave `edits` out.",
                "edits",
            )
        for edit in self.edits:
            try:
                kind = type(parse_edit(edit))
            except LaminaError as error:
                raise invalid(str(error), "edits") from error
            if kind not in (Repetition, Exchange):
                raise invalid(
                    f"'{edit}' neither repeats nor swaps layers. Write '7-9x2' or '7<>8'. List "
                    "layers to remove under `layers`, and models to take layers from under "
                    "`donors`.",
                    "edits",
                )
        return self

    def largest_removal(self, n_layers: int) -> int:
        return min(len(self.layers), super().largest_removal(n_layers))

    def allowed_sizes(self, n_layers: int) -> range:
        if not self.edits:
            return super().allowed_sizes(n_layers)
        repetitions = [edit for edit in map(parse_edit, self.edits) if isinstance(edit, Repetition)]
        smallest_size = -sum(repetition.n_extra for repetition in repetitions)
        return range(smallest_size, smallest_size + self.largest_removal(n_layers) + 1)


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The edits, then the first layers of the list, or their sub-layers of one kind or of both."""
    named_units = units_of_layers(request.given_layers, request.n_layers, request.kind)
    missing_price = request.removed - request.prices.sum_prices(request.given_edits)
    units = request.prices.take_enough(named_units, missing_price)
    return replace(previous, removed=request.removed, units=[*units, *request.given_edits])
