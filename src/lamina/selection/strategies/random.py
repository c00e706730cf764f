"""A seeded random choice, the baseline for every selector."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.models.units import all_units
from lamina.options.entry import seed_option
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Random(Selector):
    """Draws units at random: the baseline, which measures nothing."""

    strategy: Literal["random"] = "random"
    seed: int = seed_option()


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The first units of a seeded permutation; at equal prices, plans of one seed are nested."""
    units = all_units(request.n_layers, request.kind)
    removable = [unit for unit in units if request.is_removable(unit)]
    random.Random(request.seed).shuffle(removable)
    units = request.prices.take_enough(removable, request.removed)
    return replace(previous, removed=request.removed, units=units)
