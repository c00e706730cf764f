"""Rank once, remove the lowest."""

from dataclasses import replace

from lamina.selection.plans import Plan, Request, Step


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The `request.removed` least relevant units of the base model. Only the accuracies of the first are measured."""
    chosen = [entry for entry in step.ranked if request.may_go(entry[0])][: request.removed]
    rest: list[float | None] = [None] * (len(chosen) - 1)
    return replace(
        previous,
        removed=request.removed,
        units=[unit for unit, _ in chosen],
        scores=[score for _, score in chosen],
        accuracy_before=[step.current_accuracy, *rest],
        accuracy_after=[step.accuracies.get(chosen[0][0]), *rest],
    )
