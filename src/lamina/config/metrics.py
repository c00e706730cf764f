"""The relevance metrics, one entry each: which pass measures a metric, and which strategies may use it.

An entry is the literal `METRIC` in the metric's module of `lamina.relevance`, beside its formula. It is read from the
source, since the configuration imports nothing of what computes numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from lamina.config.entry import Entry, option
from lamina.config.explain import listed
from lamina.registry import declared


@dataclass(frozen=True)
class Metric:
    """`pass_` is the cheapest pass that measures the metric and `column` where table `sweeps` holds it.

    `bound`: the largest loss of a sample (None if there is none), which the sequential test of `race` needs. `signed`:
    the loss may be below 0, which `exact` does not allow. `runs`: a whole run of layers has a value, which `block`
    needs. `halves`: half a layer has a value. `pooled`: the score of a unit depends on the scores of the others.
    """

    name: str
    pass_: str
    column: str
    help: str
    bound: float | None = None
    signed: bool = False
    runs: bool = False
    halves: bool = True
    pooled: bool = False

    @property
    def losing(self) -> bool:
        """Whether every sample has a loss whose mean ranks removals; budgets and searches compare such losses."""
        return self.pass_ == "removal" and not self.pooled


# Modules of passes that jobs do not share; the engine runs the passes that evaluate candidates.
MODULES = {
    "gradient": "lamina.engine.weights",
    "weights": "lamina.engine.weights",
    "fit": "lamina.engine.residuals",
    "shapley": "lamina.engine.coalitions",
    "presence": "lamina.engine.coalitions",
}

METRICS = {name: Metric(name, **entry) for name, entry in declared("lamina.relevance.metrics", "METRIC").items()}


def those(condition: Callable[[Metric], object]) -> str:
    """`a, b or c`: the metrics for which a condition holds."""
    return listed(sorted(name for name, metric in METRICS.items() if condition(metric)))


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError
    return name


def _removing(name: str) -> str:
    if name not in METRICS or not METRICS[name].losing:
        raise ValueError
    return name


MetricName = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(METRICS)})]


RemovalMetric = Annotated[
    str,
    AfterValidator(_removing),
    Field(json_schema_extra={"enum": [metric.name for metric in METRICS.values() if metric.losing]}),
]


class Shapley(Entry):
    """Metric `shapley`: what each unit takes along as units go one by one, in random orders."""

    value: RemovalMetric = option("Removal metric that says what a cut model is worth.", "accuracy")
    permutations: int = option(
        "Orders drawn; each second one is the reverse of the one before it.",
        20,
        ge=4,
        multiple_of=2,
        allowed="an even number of at least 4",
    )
    local: int | None = option("The most units that a model lacks; `null` goes on until none is left.", None, ge=1)


class Presence(Entry):
    """Metric `presence`: models of one size that keep the unit against those that do not."""

    value: RemovalMetric = option("Removal metric that says what a cut model is worth.", "accuracy")
    draws: int = option("Models drawn; all of them if there are no more.", 200, ge=2)
    kept: float = option("Share of the units that a model keeps, at least one less than all.", 0.9, gt=0, lt=1)


class MetricOptions(Entry):
    """Metrics that draw models to look at. All others have no options."""

    shapley: Shapley = option("What `shapley` draws.", Shapley())
    presence: Presence = option("What `presence` draws.", Presence())


def drawing(metric: str, options: Mapping[str, Any]) -> Any:
    """The options of a metric that draws models, read back from the parameters of a job."""
    return type(getattr(MetricOptions(), metric)).from_options(options)
