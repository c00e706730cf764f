"""Section `selectors`: what all ways to choose what is removed share; options of a strategy stand in its module."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lamina.config.entry import Choice, Filled, Spelt, group_option, option, replicates_option
from lamina.config.explain import listed, wrong
from lamina.config.metrics import METRICS, Metric, those

Units = Literal["layer", "attention", "mlp", "both"]

# Values of options that a strategy does not have.
_LACKING: Mapping[str, Any] = {
    "metric": None,
    "budget": "full",
    "confidence": None,
    "tolerance": None,
    "seed": 0,
    "repair": None,
    "also": {},
    "repairs": (),
    "judge": None,
    "members": (),
    "combine": "mean",
    "donors": (),
    "periods": "any",
}
Combine = Literal["mean", "worst"]

RUNS = sorted(name for name, metric in METRICS.items() if metric.runs)

# Keys that several strategies have.
units_option = partial(
    option,
    "What is removed: whole layers, one of their two halves, or `both` halves, each on its own. `both` counts sizes in "
    "layers: at size 3, halves go that together count at least as much as three layers, by their parameters.",
    "layer",
)
repair_option = partial(
    option,
    "Repair (a name under `repairs`) that is in place while units are scored, so that what is easiest to repair goes; "
    "`null` scores bare removals.",
    None,
)
also_option = partial(
    option,
    "Calibrations on which removals are scored beside the variant's own, by the same metric, with the weight of each "
    "score; that of the own one is 1. General text keeps a task from choosing what ruins all else.",
    {},
    allowed="weights above 0 by calibration, such as {corpus: 1}",
    shown_default="none",
)
combine_option = partial(
    option,
    "Whether a removal counts by the weighted `mean` of its scores or by the largest, `worst`.",
    "mean",
)
donors_option = partial(
    option,
    "Siblings (names under `donors`) whose layers may take the places of layers that stay. `removed` counts what is "
    "dropped.",
    [],
    shown_default="none",
)
held_back_option = partial(
    option,
    "Share of the calibration that the search never sees; its winner, and what greedy and one-shot reach, are measured "
    "there.",
    0.25,
    gt=0,
    lt=1,
)


def metric_option(examples: Sequence[str] = ("accuracy", "cosine"), **more: Any) -> Any:
    """The key `metric`; `examples` are metrics to begin with."""
    return option("Relevance metric by which units are compared.", examples=list(examples), **more)


# The key `metric` of a strategy that reads the captured activations.
metric_of_runs_option = partial(metric_option, RUNS, allowed=listed(RUNS))


def check_halves(units: Units, metrics: Iterable[str]) -> None:
    """Refuse halves of layers for a metric that has no value for them, by the error of key `units`."""
    for metric in metrics:
        if units != "layer" and not METRICS[metric].sublayers:
            raise wrong(
                f"'{units}' has no '{metric}', which fits maps over runs of whole layers. Write units: layer, or "
                f"metric: {those(lambda metric: metric.sublayers)}.",
                "units",
            )


def _adds(metric: Metric) -> bool:
    """Whether scores of several calibrations share a scale; scores from gradients and weights have no fixed one."""
    return metric.pass_ in ("removal", "stream")


class Selector(Choice):
    """A metric, a strategy, the kind of unit and what must stay.

    The most that can go: all unprotected layers but one; for `block` the longest run of them; for `deepest` all
    unprotected ones except the last layer.
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
    # Whether it reads a sweep; whether it goes on from the plan with one unit less; whether it reads the activations.
    SWEEPS: ClassVar[bool] = False
    STEPS: ClassVar[bool] = False
    CAPTURED: ClassVar[bool] = False
    # How units went, for the card of an export.
    CHOICE: ClassVar[str] = "units went by their scores"

    strategy: str = option("How units are picked from their scores.", "iterative")
    units: Units = units_option()
    protect: list[Annotated[int, Spelt]] = option(
        "Layers that stay, negative ones counted from the end.", []
    )
    cost: Literal["parameters", "latency"] | Annotated[float, Field(gt=0, lt=1)] = option(
        "What halves count by with `units: both`: their share of a layer's parameters; `latency`: of the bytes of "
        "weights and of a cache of 4,096 tokens (or of the model's context) that one token reads; or the share of "
        "attention, as measured.",
        "parameters",
    )
    group: Filled | None = group_option()
    replicates: int = replicates_option()

    if TYPE_CHECKING:  # keys of some strategies; the others have the values in `_LACKING`
        metric: str | None
        budget: str
        confidence: float | None
        tolerance: float | None
        seed: int
        repair: str | None
        repairs: Sequence[str]
        members: Sequence[str]
        judge: str | None
        also: Mapping[str, float]
        combine: str
        donors: Sequence[str]
        periods: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for key, value in _LACKING.items():
            if key not in cls.model_fields:
                setattr(cls, key, value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse options that exclude each other."""
        if self.metric:
            check_halves(self.units, [self.metric])
        metric = METRICS[self.metric] if self.metric else None
        removing, losing = (
            those(lambda metric: metric.removes),
            those(lambda metric: metric.losing),
        )
        removes, loses = metric is None or metric.removes, metric is None or metric.losing
        lacks = (
            "is no mean of losses of samples"
            if removes
            else "has no value for a set that is removed"
        )
        halves = self.units != "layer"
        for refused, key, message in (
            (
                self.cost != "parameters" and self.units != "both",
                "cost",
                f"{self.cost} weighs halves against each other, and units '{self.units}' all count the same. Write "
                "units: both, or leave `cost` out.",
            ),
            (
                self.units == "both" and self.budget != "full",
                "units",
                f"'both' weighs scores against prices, and budget '{self.budget}' looks for the one least score. Write "
                "budget: full, or units: layer.",
            ),
            (
                self.repair and not removes,
                "repair",
                f"'{self.repair}' repairs what one removal leaves, and metric '{self.metric}' is not measured by "
                f"that. Write metric: {removing}, or leave `repair` out.",
            ),
            (
                self.also and metric and not _adds(metric),
                "also",
                f"scores by '{self.metric}' of one calibration say nothing beside those of another. Write metric: "
                f"{those(_adds)}, or leave `also` out.",
            ),
            (
                self.also and self.budget != "full",
                "also",
                f"budget '{self.budget}' lets units leave by their errors on one calibration, before the others are "
                "seen. Write budget: full, or leave `also` out.",
            ),
            (
                self.donors and halves,
                "donors",
                f"donors give whole layers, and this selector removes {self.units} units. Write units: layer, or leave "
                "`donors` out.",
            ),
            (
                self.donors and not removes,
                "metric",
                f"'{self.metric}' says nothing of a layer that another takes the place of. Write metric: {removing}, "
                "or leave `donors` out.",
            ),
            (
                self.donors and self.budget != "full",
                "budget",
                f"budget '{self.budget}' looks for the one best change, and a step with donors for two. Write budget: "
                "full, or leave `donors` out.",
            ),
            (
                self.CAPTURED and metric and not metric.runs,
                "metric",
                f"'{self.metric}' has no value for a run of layers, which strategy '{self.strategy}' compares. Write "
                f"metric: {listed(RUNS)}, or strategy: iterative.",
            ),
            (
                self.CAPTURED and halves,
                "units",
                f"'{self.units}' does not go with strategy '{self.strategy}', which compares runs of whole layers. "
                "Write units: layer, or strategy: iterative.",
            ),
            (
                self.SEARCHES and not loses,
                "metric",
                f"'{self.metric}' {lacks}, which strategy '{self.strategy}' compares. Write metric: {losing}, or "
                "strategy: iterative.",
            ),
        ):
            if refused:
                raise wrong(message, key)
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a choice of what is removed loads by name."""
        metric = [METRICS[self.metric].module] if self.metric else []
        return (f"{self.PACKAGE}.{self.strategy}", *metric)

    def largest_removal(self, n_layers: int) -> int:
        """The most units that can go from a model of `n_layers` layers."""
        free = sum(self.free(n_layers))
        return min(free, n_layers - 1) if self.units in ("layer", "both") else free

    def attention(self, shares: Mapping[str, float]) -> float:
        """What attention counts of a layer with `units: both`, from its shares of parameters and latency."""
        return self.cost if isinstance(self.cost, float) else shares[self.cost]

    def free(self, n_layers: int) -> list[bool]:
        """Whether each layer is unprotected."""
        kept = {index % n_layers for index in self.protect}
        return [index not in kept for index in range(n_layers)]
