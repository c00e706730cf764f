"""The deepest layers but the last [arXiv 2403.17887, section 4.4]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class Deepest(Selector):
    """Removes the layers before the last one; measures nothing."""

    LIMIT = ", and the last layer stays"

    strategy: Literal["deepest"] = "deepest"

    def largest_removal(self, n_layers: int) -> int:
        return sum(self.free(n_layers)[:-1])


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """Layers L-1-n … L-2, from the deepest up; protected layers are skipped."""
    layers = [layer for layer in range(request.n_layers - 2, -1, -1) if layer not in request.protected]
    units = [request.name(layer) for layer in layers[: request.removed]]
    return replace(previous, removed=request.removed, units=units)
