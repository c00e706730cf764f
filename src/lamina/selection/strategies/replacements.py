"""Iterative steps with replacements: each removes a layer, and may replace another by a donor's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.models.units import Replacement, is_removal, parse_edit, parse_unit, replace_layer
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence
from lamina.selection.strategies import iterative

UNIT_COLUMNS = ("units", "scores", "accuracy_before", "accuracy_after")


def units(
    removable: Sequence[str], removed: Sequence[str], other_models: Sequence[str]
) -> list[str]:
    """The units of a step: those that may be removed, and their replacements by donors' layers."""
    swaps = [replace_layer(unit, name) for unit in removable for name in other_models]
    return [*removable, *(swap for swap in swaps if swap not in removed)]


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The plan with one layer less than `previous`, and at most one more replaced.

    The least relevant layer is removed. The best replacement of another layer is made if it
    improves the model that `previous` leaves. This is measured with no other change.
    """
    ranked_removals = [entry for entry in step.ranked if is_removal(entry.unit)]
    plan = iterative.choose(request, replace(step, ranked=ranked_removals), previous)
    removed_layers = {parse_unit(unit)[0] for unit in plan.units if is_removal(unit)}
    obsolete_swaps = [
        unit
        for unit in plan.units
        if not is_removal(unit) and parse_unit(unit)[0] in removed_layers
    ]
    plan = _without_units(plan, obsolete_swaps)
    best_swap = next(
        (entry for entry in step.ranked if _may_swap(entry, request, removed_layers)), None
    )
    if best_swap is None or best_swap.score is None or best_swap.score >= 0:
        return plan
    layer = parse_unit(best_swap.unit)[0]
    plan = _without_units(plan, [unit for unit in plan.units if parse_unit(unit)[0] == layer])
    return replace(
        plan,
        units=[*plan.units, best_swap.unit],
        scores=[*plan.scores, best_swap.score],
        accuracy_before=[*plan.accuracy_before, step.current_accuracy],
        accuracy_after=[*plan.accuracy_after, step.accuracies.get(best_swap.unit)],
    )


def _may_swap(entry: ScoredUnit, request: PlanRequest, removed_layers: set[int]) -> bool:
    """Whether a unit is a replacement of a present and unprotected layer, and has a score."""
    return (
        not is_removal(entry.unit)
        and parse_unit(entry.unit)[0] not in removed_layers
        and request.is_removable(entry.unit)
        and entry.score is not None
    )


def with_records(plan: Plan, records: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with the records of its donors, and of the models that these are merged from."""
    edits = map(parse_edit, plan.units)
    donor_names = {edit.donor for edit in edits if isinstance(edit, Replacement)}
    for name in list(donor_names):
        donor_names |= set(records[name].get("of", ()))
    return replace(plan, replacements={name: dict(records[name]) for name in sorted(donor_names)})


def _without_units(plan: Plan, units: Sequence[str]) -> Plan:
    """The plan without some units, their scores and accuracies."""
    kept_positions = [position for position, unit in enumerate(plan.units) if unit not in units]
    kept_columns: dict[str, Any] = {}
    for column in UNIT_COLUMNS:
        values = getattr(plan, column)
        kept_columns[column] = [values[position] for position in kept_positions]
    return replace(plan, **kept_columns)
