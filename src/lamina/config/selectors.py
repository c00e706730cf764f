"""Section `selectors`: the ways to choose what is removed. A class here has the name and the options of a strategy."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.config.entry import Filled, option, seed_option
from lamina.config.explain import wrong
from lamina.config.metrics import METRICS, MetricName, those
from lamina.config.strategy import (
    Combine,
    Selector,
    Weights,
    also_option,
    combine_option,
    donors_option,
    held_back_option,
    metric_option,
    repair_option,
)

__all__ = ["Selector", "read"]


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

    strategy: Literal["iterative"] = "iterative"
    metric: MetricName = metric_option()
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
        "For `race`, how much worse than the true minimum a removal may be, as a share of the samples.", 0.01, ge=0
    )
    seed: int = seed_option()
    repair: Filled | None = repair_option()
    also: Weights = also_option()
    combine: Combine = combine_option()
    donors: list[Filled] = donors_option()

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        metric = METRICS[self.metric]
        if self.budget != "full" and not metric.losing:
            raise wrong(
                f"'{self.budget}' saves nothing with metric '{self.metric}', which is not measured by removing one "
                "unit after the other. Write budget: full, or metric: accuracy.",
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


class OneShot(Selector):
    """Scores every unit of the unpruned model once and removes the lowest ones together."""

    strategy: Literal["one_shot"] = "one_shot"
    metric: MetricName = metric_option()
    repair: Filled | None = repair_option()
    also: Weights = also_option()
    combine: Combine = combine_option()


class Block(Selector):
    """Removes the run of layers with the smallest distance between its ends."""

    LIMIT = ", and they go as one run"
    USUAL_METRICS = those(lambda metric: metric.runs)

    strategy: Literal["block"] = "block"
    metric: MetricName = metric_option(allowed=USUAL_METRICS)

    @model_validator(mode="after")
    def _check_runs(self) -> Self:
        if not METRICS[self.metric].runs:
            raise wrong(
                f"'{self.metric}' has no value for a run of layers, which strategy 'block' compares. Write metric: "
                f"{self.USUAL_METRICS}, or strategy: iterative.",
                "metric",
            )
        if self.units != "layer":
            raise wrong(
                f"'{self.units}' does not go with strategy 'block', which removes a run of whole layers. Write units: "
                "layer, or strategy: iterative.",
                "units",
            )
        return self

    def largest_removal(self, n_layers: int) -> int:
        runs = "".join("x" if is_free else " " for is_free in self.free(n_layers)).split()
        return min(max(map(len, runs), default=0), n_layers - 1)


class Deepest(Selector):
    """Removes the layers before the last one; measures nothing."""

    LIMIT = ", and the last layer stays"

    strategy: Literal["deepest"] = "deepest"

    def largest_removal(self, n_layers: int) -> int:
        return sum(self.free(n_layers)[:-1])


class Random(Selector):
    """Draws what goes: the baseline, which measures nothing."""

    strategy: Literal["random"] = "random"
    seed: int = seed_option()


class Evolutionary(Selector):
    """Mutates one set of each size and keeps the best child, after EvoPress (arXiv 2410.14649).

    A child swaps one to three units that are gone with as many that are there. Children are selected in stages, fewer
    of them on more tokens; the parent competes in the last stage. A plan need not contain the smaller one.

    It is one job for all sizes of the studies. It compares sets by the mean loss behind the metric, on a seeded part of
    the calibration. Table `searches` has all that was tried, what it cost, and what the winner is worth on the samples
    held back. `repair` repairs what is compared, as for `iterative`. With `donors`, half of the mutations replace a
    layer by a donor's, or undo that.
    """

    SEARCHES = True
    USUAL_METRICS = "accuracy or output_kl"

    strategy: Literal["evolutionary"] = "evolutionary"
    metric: MetricName = metric_option()
    offspring: int = option("Children of a generation; the first parent is the best of as many drawn sets.", 32, ge=1)
    generations: int | None = option(
        "Generations; `null` takes k (L - k) / 1.5 of them to remove k of L units.", None, ge=1
    )
    stages: list[Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]] = option(
        "How many children each stage keeps, and on how many tokens they are compared.",
        [[2, 2048], [1, 32768]],
        allowed="pairs [kept, tokens] such as [[2, 2048], [1, 32768]], the last keeping 1",
        min_length=1,
    )
    held_back: float = held_back_option()
    seed: int = seed_option()
    repair: Filled | None = repair_option()
    donors: list[Filled] = donors_option()

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        kept = [keep for keep, _ in self.stages]
        if kept[-1] != 1 or kept != sorted(kept, reverse=True):
            raise wrong(
                f"{self.stages} keeps {', '.join(map(str, kept))}: stages keep fewer and fewer children, the last "
                "one 1. Write such as [[2, 2048], [1, 32768]].",
                "stages",
            )
        return self


read = Selector.from_options
