"""Sweep, remove the least relevant unit, sweep the pruned model again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.options import selectors
from lamina.options.entry import Filled, Weights, seed_option
from lamina.options.metrics import MetricName
from lamina.options.selectors import Combine, Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Iterative(Selector):
    """Removes the unit with the lowest score, then scores the rest again.

    With `repair`, every removal is scored with its best patch applied. No sample is scored with a
    patch that was fitted on it: `seed` splits the calibration into two folds, and patches fitted on
    one fold are scored on the other. Protected layers are then not scored, and the sweep of the
    unpruned model is not shared with other selectors. To repair the finished plan as well, list the
    repair under the study's `repairs`.
    """

    SWEEPS = True
    STEPS = True
    CHOICE = "the unit with the lowest score was removed, then the rest was measured again"

    strategy: Literal["iterative"] = "iterative"
    metric: MetricName = selectors.metric_option()
    seed: int = seed_option()
    repair: Filled | None = selectors.repair_option()
    also: Weights = selectors.also_option()
    combine: Combine = selectors.combine_option()


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """The plan with one more unit than `previous`, or with one more layer's worth of sub-layers.

    `step` was measured on the model that `previous` leaves.
    """
    lowest = request.select_lowest_units(step.ranked, previous.units)
    unmeasured: list[float | None] = [None] * (len(lowest) - 1)
    accuracy_after = list(previous.accuracy_after)
    if accuracy_after and accuracy_after[-1] is None:
        # The previous step ran a pass without removals, or removed several units.
        accuracy_after[-1] = step.current_accuracy
    measured_after = None if unmeasured else step.accuracies.get(lowest[0].unit)
    return replace(
        previous,
        removed=request.removed,
        units=[*previous.units, *(entry.unit for entry in lowest)],
        scores=[*previous.scores, *(entry.score for entry in lowest)],
        accuracy_before=[*previous.accuracy_before, step.current_accuracy, *unmeasured],
        accuracy_after=[*accuracy_after, *unmeasured, measured_after],
    )
