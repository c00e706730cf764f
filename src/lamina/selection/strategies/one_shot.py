"""Rank all units once and remove the lowest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.options.entry import Filled, Weights, seed_option
from lamina.options.metrics import MetricName
from lamina.options.selectors import (
    Combine,
    Selector,
    also_option,
    combine_option,
    metric_option,
    repair_option,
)

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class OneShot(Selector):
    """Scores every unit of the base model once and removes those with the lowest scores."""

    SWEEPS = True
    CHOICE = "the units with the lowest scores were removed"

    strategy: Literal["one_shot"] = "one_shot"
    metric: MetricName = metric_option()
    repair: Filled | None = repair_option()
    also: Weights = also_option()
    combine: Combine = combine_option()
    seed: int = seed_option()


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The least relevant units of the base model.

    Accuracy was measured only before and after the first removal.
    """
    lowest = request.select_lowest_units(step.ranked)
    unmeasured: list[float | None] = [None] * (len(lowest) - 1)
    return replace(
        previous,
        removed=request.removed,
        units=[entry.unit for entry in lowest],
        scores=[entry.score for entry in lowest],
        accuracy_before=[step.current_accuracy, *unmeasured],
        accuracy_after=[step.accuracies.get(lowest[0].unit), *unmeasured],
    )
