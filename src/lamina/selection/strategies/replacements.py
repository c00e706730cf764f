"""Iterative steps with replacements: a step removes one layer, and may replace another by that of another model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.models.units import donor_of, parse_unit, replacement_unit
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence
from lamina.selection.strategies import iterative

UNIT_COLUMNS = ("units", "scores", "accuracy_before", "accuracy_after")


def units(
    removable: Sequence[str], removed: Sequence[str], other_models: Sequence[str]
) -> list[str]:
    """The units of a step: those that may be removed, and their replacements by layers of other models."""
    swaps = [replacement_unit(unit, name) for unit in removable for name in other_models]
    return [*removable, *(swap for swap in swaps if swap not in removed)]


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The plan with one layer less than `previous`, and at most one more replaced.

    The least relevant layer is removed. The best replacement of another layer is made if it improves the model that
    `previous` leaves. This is measured with no other change.
    """
    removals = [entry for entry in step.ranked if not donor_of(entry.unit)]
    plan = iterative.choose(request, replace(step, ranked=removals), previous)
    removed_layers = {parse_unit(unit)[0] for unit in plan.units if not donor_of(unit)}
    obsolete = [
        unit for unit in plan.units if donor_of(unit) and parse_unit(unit)[0] in removed_layers
    ]
    plan = _without_units(plan, obsolete)
    best = next((entry for entry in step.ranked if _may_swap(entry, request, removed_layers)), None)
    if best is None or best.score is None or best.score >= 0:
        return plan
    layer = parse_unit(best.unit)[0]
    plan = _without_units(plan, [unit for unit in plan.units if parse_unit(unit)[0] == layer])
    return replace(
        plan,
        units=[*plan.units, best.unit],
        scores=[*plan.scores, best.score],
        accuracy_before=[*plan.accuracy_before, step.current_accuracy],
        accuracy_after=[*plan.accuracy_after, step.accuracies.get(best.unit)],
    )


def _may_swap(entry: ScoredUnit, request: PlanRequest, removed_layers: set[int]) -> bool:
    """Whether a unit is a replacement of a present and unprotected layer, and has a score."""
    return (
        bool(donor_of(entry.unit))
        and parse_unit(entry.unit)[0] not in removed_layers
        and request.is_removable(entry.unit)
        and entry.score is not None
    )


def with_records(plan: Plan, records: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with the records of the models that it takes layers from, and of those that these are merged from."""
    names = {donor_of(unit) for unit in plan.units if donor_of(unit)}
    for name in list(names):
        names |= set(records[name].get("of", ()))
    return replace(plan, replacements={name: dict(records[name]) for name in sorted(names)})


def _without_units(plan: Plan, units: Sequence[str]) -> Plan:
    """The plan without some units, their scores and accuracies."""
    kept_positions = [position for position, unit in enumerate(plan.units) if unit not in units]
    kept: dict[str, Any] = {}
    for column in UNIT_COLUMNS:
        values = getattr(plan, column)
        kept[column] = [values[position] for position in kept_positions]
    return replace(plan, **kept)
