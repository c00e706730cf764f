"""Iterative steps with donors: a step removes one layer, and may replace another layer by that of a sibling model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.models.units import DONOR
from lamina.selection.plans import Plan, Request, Step
from lamina.selection.strategies import iterative
from lamina.store import checksum as seal

KEPT = ("source", "revision", "path", "weights_sha256", "trust_remote_code")  # of a sibling's manifest


def read(files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Records of donors, by name. That of a sibling is read from its manifest file; that of a merged donor is given."""

    def sibling(file: str) -> dict[str, Any]:
        manifest = seal.read_json(file)
        return {key: manifest[key] for key in KEPT}

    return {name: sibling(about) if isinstance(about, str) else dict(about) for name, about in files.items()}


def units(plain: Sequence[str], removed: Sequence[str], donors: Sequence[str]) -> list[str]:
    """The units of a step: the units that may be removed, and the replacements of each unit by each donor."""
    swaps = [f"{unit}.{DONOR}{donor}" for unit in plain for donor in donors]
    return [*plain, *(swap for swap in swaps if swap not in removed)]


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The plan with one layer less than `previous`, and at most one more replaced.

    The least relevant layer is removed. The best replacement of another layer is made if it improves the model that
    `previous` leaves. This is measured with no other change.
    """
    plain = [entry for entry in step.ranked if not _donor(entry[0])]
    plan = iterative.choose(request, replace(step, ranked=plain), previous)
    gone = {_layer(unit) for unit in plan.units if not _donor(unit)}
    plan = _without(plan, [unit for unit in plan.units if _donor(unit) and _layer(unit) in gone])
    swaps = [
        (unit, score)
        for unit, score in step.ranked
        if _donor(unit) and _layer(unit) not in gone and request.may_go(unit) and score is not None
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
    """The plan with the records of its donors, including the siblings of merged donors."""
    names = {_donor(unit) for unit in plan.units if _donor(unit)}
    names |= {sibling for name in names for sibling in records[name].get("of", ())}
    return replace(plan, donors={name: dict(records[name]) for name in sorted(names)})


def _layer(unit: str) -> int:
    return int(unit.split(".")[0])


def _donor(unit: str) -> str:
    """The name of the donor of a unit; empty for a unit that is removed."""
    return unit.partition(f".{DONOR}")[2]


def _without(plan: Plan, units: Sequence[str]) -> Plan:
    """The plan without some units and their scores."""

    def left(values: list[Any]) -> list[Any]:
        return [value for value, unit in zip(values, plan.units, strict=True) if unit not in units]

    return replace(
        plan,
        units=left(plan.units),
        scores=left(plan.scores),
        accuracy_before=left(plan.accuracy_before),
        accuracy_after=left(plan.accuracy_after),
    )
