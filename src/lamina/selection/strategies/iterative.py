"""Sweep, remove the least relevant unit, sweep the pruned model again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from lamina.config import selectors
from lamina.config.entry import Filled, Weights, option, seed_option
from lamina.config.explain import wrong
from lamina.config.metrics import METRICS, MetricName, those
from lamina.config.selectors import Combine, Selector

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class Iterative(Selector):
    """Removes the lowest unit and scores the rest again.

    A sweep that only has to find the least relevant unit need not finish the others. `budget: exact` gives the same
    plan as `full`: the most promising units are finished first, and every other one sees hard samples first (those that
    the model before the removal gets wrong, or right by a small margin) and leaves once its errors exceed the best
    unit's total. `budget: race` compares units in pairs on the same samples and lets one leave once a sequential test
    (betting, valid at any time) is sure that it is not better than the leader by more than `tolerance`; the errors of
    all steps of a plan together stay below 1 - `confidence`. A step is then one job, and its tables say how many
    samples each unit saw; what `exact` ruled out early has no score there but what it is at least. Maps are always
    full sweeps.

    With `repair`, every removal is scored with its best patch in place. A sample is never scored under a patch that
    was fitted on it: the calibration is drawn into two halves by `seed`, and the patches of one score the other. List
    the repair under the study's `repairs` as well to have the finished plan repaired. Protected layers are then
    not scored, and the sweep of the unpruned model is not shared with other selectors.

    With `donors`, a step also scores every layer replaced by each donor's; beside the layer that goes, the best of them
    takes its place if the model is better with it.
    """

    SWEEPS = True
    STEPS = True
    CHOICE = "the unit with the lowest score went, then the rest was measured again"

    strategy: Literal["iterative"] = "iterative"
    metric: MetricName = selectors.metric_option()
    budget: Literal["full", "exact", "race"] = option(
        "Whether every unit sees every sample (`full`) or leaves once it cannot be the minimum (`exact`, `race`).",
        "full",
    )
    confidence: float = option(
        "For `race`, the chance that every removal of a plan is within the tolerance of the true minimum.",
        0.95,
        ge=0.5,
        lt=1,
    )
    tolerance: float = option(
        "For `race`, how much worse than the true minimum a removal may be, as a share of the samples.",
        0.01,
        ge=0,
    )
    seed: int = seed_option()
    repair: Filled | None = selectors.repair_option()
    also: Weights = selectors.also_option()
    combine: Combine = selectors.combine_option()
    donors: list[Filled] = selectors.donors_option()

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        metric = METRICS[self.metric]
        if self.budget != "full" and not metric.losing:
            removing = "is not measured by removing one unit after the other"
            lacks = "is no mean of losses of samples" if metric.removes else removing
            raise wrong(
                f"'{self.budget}' saves nothing with metric '{self.metric}', which {lacks}. Write budget: full, or "
                "metric: accuracy.",
                "budget",
            )
        if self.budget == "exact" and metric.signed:
            raise wrong(
                f"'exact' needs a metric whose losses only add up, and those of '{self.metric}' may be below 0. Write "
                "budget: full, or metric: accuracy.",
                "budget",
            )
        if self.budget == "race" and metric.bound is None:
            raise wrong(
                f"'race' needs a metric with a bounded loss, which '{self.metric}' has not. Write budget: exact, or "
                f"metric: {those(lambda metric: metric.bound)}.",
                "budget",
            )
        return self


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The plan with one unit more than `previous`, or with halves that make up for one more layer; `step` was measured
    on the model that `previous` leaves.
    """
    chosen = request.lowest(step.ranked, previous.units)
    after = list(previous.accuracy_after)
    if after and after[-1] is None:
        # A pass without removals learns only now what the last removal did, and a step of several what they did.
        after[-1] = step.current_accuracy
    rest: list[float | None] = [None] * (len(chosen) - 1)
    return replace(
        previous,
        removed=request.removed,
        units=[*previous.units, *(unit for unit, _ in chosen)],
        scores=[*previous.scores, *(score for _, score in chosen)],
        accuracy_before=[*previous.accuracy_before, step.current_accuracy, *rest],
        accuracy_after=[*after, *rest, None if rest else step.accuracies.get(chosen[0][0])],
    )
