"""What donors add to an iterative step: layers that stay may be replaced by siblings', beside the one that goes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina import seal
from lamina.search import iterative
from lamina.search.plans import Plan, Request, Step
from lamina.variant import DONOR

KEPT = ("source", "revision", "path", "weights_sha256", "trust_remote_code")  # of a sibling's manifest


def read(files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What donors are, by name: of a sibling what its manifest, a file, says of it; of a merged one as it is given."""

    def sibling(file: str) -> dict[str, Any]:
        manifest = seal.read_json(file)
        return {key: manifest[key] for key in KEPT}

    return {name: sibling(about) if isinstance(about, str) else dict(about) for name, about in files.items()}


def units(plain: Sequence[str], removed: Sequence[str], donors: Sequence[str]) -> list[str]:
    """The units of a step: those that may be dropped, and each replaced by each donor that is not there yet."""
    swaps = [f"{unit}.{DONOR}{donor}" for unit in plain for donor in donors]
    return [*plain, *(swap for swap in swaps if swap not in removed)]


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The plan with one layer less than `previous`, and at most one more replaced.

    The layer that goes is the least relevant one. Of the others, the one with the best replacement is replaced if the
    model that `previous` leaves is better with it, which is measured with nothing else changed.
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
    """The plan with what its donors are, the siblings of merged ones included."""
    names = {_donor(unit) for unit in plan.units if _donor(unit)}
    names |= {sibling for name in names for sibling in records[name].get("of", ())}
    return replace(plan, donors={name: dict(records[name]) for name in sorted(names)})


def _layer(unit: str) -> int:
    return int(unit.split(".")[0])


def _donor(unit: str) -> str:
    """The name of the donor of a unit; empty for one that is dropped."""
    return unit.partition(f".{DONOR}")[2]


def _without(plan: Plan, units: Sequence[str]) -> Plan:
    """The plan less what became of some units."""

    def left(values: list[Any]) -> list[Any]:
        return [value for value, unit in zip(values, plan.units, strict=True) if unit not in units]

    return replace(
        plan,
        units=left(plan.units),
        scores=left(plan.scores),
        accuracy_before=left(plan.accuracy_before),
        accuracy_after=left(plan.accuracy_after),
    )
