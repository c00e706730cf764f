"""Section `selectors`: the options that all ways to choose what is removed share.

The options of one strategy stand in its module under `lamina.selection.strategies`.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lamina.options.entry import Choice, Filled, Spelt, group_option, option, replicates_option
from lamina.options.explain import invalid, join_words
from lamina.options.metrics import METRICS, MetricEntry, metrics_where

Units = Literal["layer", "attention", "mlp", "both"]

# What the options are that a strategy does not have, for those who read them of any selector.
_ABSENT_OPTIONS: Mapping[str, Any] = {
    "metric": None,
    "seed": 0,
    "held_back": 0.25,
    "repair": None,
    "also": {},
    "repairs": (),
    "judge": None,
    "judge_by": "loss",
    "members": (),
    "combine": "mean",
    "donors": (),
    "periods": "any",
    "layers": (),
    "edits": (),
    "sets": (),
}
Combine = Literal["mean", "worst"]

# The metrics that have a value for a run of layers.
RUNS = sorted(name for name, metric in METRICS.items() if metric.runs)

# Keys that several strategies have.
units_option = partial(
    option,
    "What is removed: whole layers, their attention or MLP sub-layers, or `both` kinds of "
    "sub-layer, separately. With `both`, sizes are in layers: at size 3, the removed sub-layers "
    "add up to at least three layers, by default in parameters.",
    "layer",
)
repair_option = partial(
    option,
    "Repair (a name under `repairs`) that is applied while units are scored, so that units that "
    "are easy to repair are removed; `null` scores removals without a repair.",
    None,
)
also_option = partial(
    option,
    "Further calibrations on which removals are scored by the same metric, with the weights of "
    "their scores; the variant's own has weight 1. General text prevents choices that ruin "
    "everything but the task.",
    {},
    allowed="weights above 0 by calibration, such as {corpus: 1}",
    shown_default="none",
)
combine_option = partial(
    option,
    "How scores on several calibrations are combined: by their weighted `mean`, or by the "
    "largest weighted score (`worst`).",
    "mean",
)
held_back_option = partial(
    option,
    "Share of the calibration that the search does not use. The winners and the base model are "
    "measured on it.",
    0.25,
    gt=0,
    lt=1,
)


def metric_option(examples: Sequence[str] = ("accuracy", "cosine"), **more: Any) -> Any:
    """Make the key `metric`; `examples` are metrics to begin with."""
    return option("Relevance metric by which units are compared.", examples=list(examples), **more)


# The key `metric` of a strategy that reads the captured activations.
metric_of_runs_option = partial(metric_option, RUNS, allowed=join_words(RUNS))


def check_share(text: str) -> str:
    """A share of a model's layers such as `25%`, without blanks.

    Raises ValueError if the text is no share, or none at all.
    """
    percentage = re.fullmatch(r"\s*([0-9]+(?:[.][0-9]+)?)\s*%\s*", text)
    if percentage is None or not Fraction(percentage[1]):
        raise ValueError
    return f"{percentage[1]}%"


def share_of_layers(share: str, n_layers: int) -> int:
    """A share such as `25%` as a number of layers: rounded down, at least 1."""
    return max(1, int(n_layers * Fraction(share.rstrip("%")) / 100))


def check_whole_layers(units: Units, strategy: str, purpose: str) -> None:
    """Refuse sub-layers, by the error of key `units`.

    purpose: What the strategy does with whole layers.
    """
    if units != "layer":
        raise invalid(
            f"'{units}' does not go with strategy '{strategy}', which {purpose}. "
            "Write units: layer.",
            "units",
        )


def _has_common_scale(metric: MetricEntry) -> bool:
    """Whether scores on several calibrations share a scale.

    Scores from gradients and weights have no fixed one.
    """
    return metric.pass_ in ("removal", "stream", "generate")


class Selector(Choice):
    """How the units to remove are chosen: metric, strategy, kind of unit, protected layers.

    All unprotected layers can be removed, but at least one layer stays. Some strategies allow
    fewer: `block` the longest unprotected run, `deepest` all but the last layer, `given` those that
    you name.
    """

    BY = "strategy"
    USUAL = "iterative"
    PACKAGE = "lamina.selection.strategies"
    ASIDE = ("group", "replicates")
    # For a message: what else limits a removal.
    LIMIT: ClassVar[str] = ""
    # Whether one job finds the plans of all sizes by trying whole sets.
    SEARCHES: ClassVar[bool] = False
    SEARCH: ClassVar[str] = "lamina.selection.sets"  # the module of that job
    # Whether it runs layers again or elsewhere, and does not only remove units.
    MOVES: ClassVar[bool] = False
    # Whether its models are larger than the base model.
    GROWS: ClassVar[bool] = False
    # Whether it reads a sweep.
    SWEEPS: ClassVar[bool] = False
    # Whether it goes on from the plan with one unit less.
    STEPS: ClassVar[bool] = False
    # Whether it reads the captured activations.
    CAPTURED: ClassVar[bool] = False
    # Whether it proposes sets to a portfolio without reading a measurement.
    PROPOSES: ClassVar[bool] = False
    # How units were chosen, for the card of an export.
    CHOICE: ClassVar[str] = "units were removed by their scores"

    strategy: str = option("How units are chosen from their scores.", "iterative")
    units: Units = units_option()
    protect: list[Annotated[int, Spelt]] = option(
        "Layers that stay unchanged; negative numbers count from the end.", []
    )
    cost: Literal["parameters", "latency"] | Annotated[float, Field(gt=0, lt=1)] = option(
        "With `units: both`: the share of a layer that a sub-layer counts as. `parameters`: its "
        "share of the layer's parameters. `latency`: its share of the bytes read per token, from "
        "weights and a KV cache of 4,096 tokens (or of the model's context). A number: the share "
        "of attention, as you measured it.",
        "parameters",
    )
    group: Filled | None = group_option()
    replicates: int = replicates_option()

    if TYPE_CHECKING:  # keys of some strategies; the others have the values of `_ABSENT_OPTIONS`
        metric: str | None
        seed: int
        held_back: float
        repair: str | None
        repairs: Sequence[str]
        members: Sequence[str]
        judge: str | None
        judge_by: str
        also: Mapping[str, float]
        combine: str
        donors: Sequence[str]
        periods: str
        layers: Sequence[int]
        edits: Sequence[str]
        sets: Sequence[Sequence[int]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for key, value in _ABSENT_OPTIONS.items():
            if key not in cls.model_fields:
                setattr(cls, key, value)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Refuse options that exclude each other."""
        self._check_cost()
        if self.metric:
            self._check_metric(METRICS[self.metric])
        self._check_run_units()
        return self

    def _check_cost(self) -> None:
        if self.cost == "parameters" or self.units == "both":
            return
        raise invalid(
            f"{self.cost} weighs attention against MLP, but with units: {self.units} all units "
            "count the same. Write units: both, or leave `cost` out.",
            "cost",
        )

    def _check_run_units(self) -> None:
        if not self.CAPTURED or self.units == "layer":
            return
        raise invalid(
            f"'{self.units}' does not go with strategy '{self.strategy}', which compares runs of "
            "whole layers. Write units: layer, or strategy: iterative.",
            "units",
        )

    def _check_metric(self, metric: MetricEntry) -> None:
        """Refuse a metric that cannot measure what the other options ask for."""
        removal_metrics = metrics_where(lambda metric: metric.removes)

        if self.repair and not metric.removes:
            raise invalid(
                f"'{self.repair}' repairs what a removal leaves, but metric '{metric.name}' is not "
                f"measured with a repair in place. Write metric: {removal_metrics}, or leave "
                "`repair` out.",
                "repair",
            )

        if self.also and not _has_common_scale(metric):
            raise invalid(
                f"scores by '{metric.name}' on different calibrations have no common scale. Write "
                f"metric: {metrics_where(_has_common_scale)}, or leave `also` out.",
                "also",
            )

        if self.CAPTURED and not metric.runs:
            raise invalid(
                f"'{metric.name}' has no value for a run of layers, which is what strategy "
                f"'{self.strategy}' compares. Write metric: {join_words(RUNS)}, or strategy: "
                "iterative.",
                "metric",
            )

        if self.SEARCHES and not metric.removes:
            lacking_words = "has no value for a set of removed units"
            if metric.writes:
                lacking_words = "is measured by written answers and not by a loss per sample"
            raise invalid(
                f"'{metric.name}' {lacking_words}, which is what strategy '{self.strategy}' "
                f"compares. Write metric: {metrics_where(lambda metric: metric.removes)}, or "
                "strategy: iterative.",
                "metric",
            )

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a choice of what is removed loads by name."""
        strategy_module = f"{self.PACKAGE}.{self.strategy}"
        if not self.metric:
            return (strategy_module,)
        return (strategy_module, METRICS[self.metric].module)

    def largest_removal(self, n_layers: int) -> int:
        """The most units that can be removed from a model of `n_layers` layers."""
        n_free = sum(self.free(n_layers))
        if self.units in ("layer", "both"):
            return min(n_free, n_layers - 1)
        return n_free

    def allowed_sizes(self, n_layers: int) -> range:
        """The sizes that plans for a model of `n_layers` layers may have.

        A size is the number of units that are removed, less the layers that run again. So size 0 is
        the same number of layers, repeated or reordered, and -2 is two more. A strategy that only
        removes takes sizes from 1 on; one that `MOVES` layers says here what it takes.
        """
        return range(1, self.largest_removal(n_layers) + 1)

    def most_runs(self, size: int) -> int:
        """The most runs of layers that a plan of this size lacks.

        A plan of size 0 or less may remove a layer for others that run again.
        """
        return max(1, size)

    def attention(self, shares: Mapping[str, float]) -> float:
        """What attention counts of a layer with `units: both`.

        shares: Of attention in a layer's `parameters` and `latency`.
        """
        return self.cost if isinstance(self.cost, float) else shares[self.cost]

    def free(self, n_layers: int) -> list[bool]:
        """Whether each layer is unprotected."""
        protected_indices = {index % n_layers for index in self.protect}
        return [index not in protected_indices for index in range(n_layers)]

    def longest_free_run(self, n_layers: int) -> int:
        """The most unprotected neighbours."""
        groups = groupby(self.free(n_layers))
        return max((len(list(group)) for is_free, group in groups if is_free), default=0)
