"""A seeded random choice, the baseline for every selector."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import seed_option
from lamina.config.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class Random(Selector):
    """Draws what goes: the baseline, which measures nothing."""

    strategy: Literal["random"] = "random"
    seed: int = seed_option()


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The first `request.removed` of a seeded permutation, so that plans of one seed are nested."""
    layers = [layer for layer in range(request.n_layers) if layer not in request.protected]
    random.Random(request.seed).shuffle(layers)
    units = [request.name(layer) for layer in layers[: request.removed]]
    return replace(previous, removed=request.removed, units=units)
