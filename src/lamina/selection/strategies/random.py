"""A seeded random choice, the baseline for every selector."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import seed_option
from lamina.config.selectors import Selector
from lamina.models.units import all_units

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class Random(Selector):
    """Draws what goes: the baseline, which measures nothing."""

    strategy: Literal["random"] = "random"
    seed: int = seed_option()


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The first units of a seeded permutation, so that plans of one seed are nested, but for prices that differ."""
    units = [unit for unit in all_units(request.n_layers, request.kind) if request.may_go(unit)]
    random.Random(request.seed).shuffle(units)
    return replace(
        previous, removed=request.removed, units=request.prices.enough(units, request.removed)
    )
