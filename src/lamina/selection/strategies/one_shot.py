"""Rank once, remove the lowest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import Filled, Weights
from lamina.config.metrics import MetricName
from lamina.config.selectors import (
    Combine,
    Selector,
    also_option,
    combine_option,
    metric_option,
    repair_option,
)

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class OneShot(Selector):
    """Scores every unit of the unpruned model once and removes the lowest ones together."""

    SWEEPS = True
    CHOICE = "the units with the lowest scores went"

    strategy: Literal["one_shot"] = "one_shot"
    metric: MetricName = metric_option()
    repair: Filled | None = repair_option()
    also: Weights = also_option()
    combine: Combine = combine_option()


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The least relevant units of the base model. Only the accuracies of the first are measured."""
    chosen = request.lowest(step.ranked)
    rest: list[float | None] = [None] * (len(chosen) - 1)
    return replace(
        previous,
        removed=request.removed,
        units=[unit for unit, _ in chosen],
        scores=[score for _, score in chosen],
        accuracy_before=[step.current_accuracy, *rest],
        accuracy_after=[step.accuracies.get(chosen[0][0]), *rest],
    )
