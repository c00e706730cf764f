"""Iterative steps with replacements: a step removes one layer, and may replace another by that of another model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.models.units import replaced, replacement
from lamina.selection.plans import Plan, Request, Step
from lamina.selection.strategies import iterative


def units(plain: Sequence[str], removed: Sequence[str], others: Sequence[str]) -> list[str]:
    """The units of a step: the units that may be removed, and their replacements by layers of the models `others`."""
    swaps = [replaced(unit, name) for unit in plain for name in others]
    return [*plain, *(swap for swap in swaps if swap not in removed)]


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The plan with one layer less than `previous`, and at most one more replaced.

    The least relevant layer is removed. The best replacement of another layer is made if it improves the model that
    `previous` leaves. This is measured with no other change.
    """
    plain = [entry for entry in step.ranked if not replacement(entry[0])]
    plan = iterative.choose(request, replace(step, ranked=plain), previous)
    gone = {_layer(unit) for unit in plan.units if not replacement(unit)}
    plan = _without(
        plan, [unit for unit in plan.units if replacement(unit) and _layer(unit) in gone]
    )
    swaps = [
        (unit, score)
        for unit, score in step.ranked
        if replacement(unit)
        and _layer(unit) not in gone
        and request.may_go(unit)
        and score is not None
    ]
    if not swaps or swaps[0][1] >= 0:
        return plan
    unit, score = swaps[0]
    plan = _without(plan, [each for each in plan.units if _layer(each) == _layer(unit)])
    return replace(
        plan,
        units=[*plan.units, unit],
        scores=[*plan.scores, score],
        accuracy_before=[*plan.accuracy_before, step.current_accuracy],
        accuracy_after=[*plan.accuracy_after, step.accuracies.get(unit)],
    )


def with_records(plan: Plan, records: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with the records of the models that it takes layers from, and of those that these are merged from."""
    names = {replacement(unit) for unit in plan.units if replacement(unit)}
    names |= {part for name in names for part in records[name].get("of", ())}
    return replace(plan, replacements={name: dict(records[name]) for name in sorted(names)})


def _layer(unit: str) -> int:
    return int(unit.split(".")[0])


def _without(plan: Plan, units: Sequence[str]) -> Plan:
    """The plan without some units and what is told of them."""
    left = [place for place, unit in enumerate(plan.units) if unit not in units]
    columns = ("units", "scores", "accuracy_before", "accuracy_after")
    kept: dict[str, Any] = {
        name: [getattr(plan, name)[place] for place in left] for name in columns
    }
    return replace(plan, **kept)
