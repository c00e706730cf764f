"""The relevance metrics, one entry each: which pass measures a metric, and which strategies may use it.

An entry is the literal `METRIC` in the metric's module of `lamina.relevance`, beside its formula. It is read from the
source, since the configuration imports nothing of what computes numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from lamina.config.explain import listed
from lamina.registry import declared


@dataclass(frozen=True)
class Metric:
    """`pass_` is the cheapest pass that measures the metric and `column` where table `sweeps` holds it.

    `bound`: the largest loss of a sample (None if there is none), which the sequential test of `race` needs. `signed`:
    the loss may be below 0, which `exact` does not allow. `runs`: a whole run of layers has a value, which `block`
    needs. `halves`: half a layer has a value.
    """

    name: str
    pass_: str
    column: str
    help: str
    bound: float | None = None
    signed: bool = False
    runs: bool = False
    halves: bool = True

    @property
    def losing(self) -> bool:
        """Whether every sample has a loss whose mean ranks removals; budgets and searches compare such losses."""
        return self.pass_ == "removal"


# Modules of passes that jobs do not share; the engine runs the passes that evaluate candidates.
MODULES = {
    "gradient": "lamina.engine.weights",
    "weights": "lamina.engine.weights",
    "fit": "lamina.selection.residuals",
}

METRICS = {name: Metric(name, **entry) for name, entry in declared("lamina.relevance.metrics", "METRIC").items()}


def those(condition: Callable[[Metric], object]) -> str:
    """`a, b or c`: the metrics for which a condition holds."""
    return listed(sorted(name for name, metric in METRICS.items() if condition(metric)))


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError
    return name


MetricName = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(METRICS)})]
