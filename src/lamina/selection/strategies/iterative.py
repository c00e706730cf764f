"""Sweep, remove the least relevant unit, sweep the pruned model again."""

from dataclasses import replace

from lamina.selection.plans import Plan, Request, Step


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The plan with one unit more than `previous`; `step` was measured on the model that `previous` leaves.

    Among equals the deeper unit is removed, because the ranking has it first.
    """
    unit, score = next(entry for entry in step.ranked if request.may_go(entry[0]) and entry[0] not in previous.units)
    after = list(previous.accuracy_after)
    if after and after[-1] is None:
        # A pass without removals learns only now what the last removal did.
        after[-1] = step.current_accuracy
    return replace(
        previous,
        removed=request.removed,
        units=[*previous.units, unit],
        scores=[*previous.scores, score],
        accuracy_before=[*previous.accuracy_before, step.current_accuracy],
        accuracy_after=[*after, step.accuracies.get(unit)],
    )
