"""The relevance metrics, one entry each: what a metric is measured by, and who may use it.

Its formula stands in the module of `lamina.relevance` that has its name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from lamina.config.explain import listed


@dataclass(frozen=True)
class Metric:
    """`pass_` is the cheapest pass that measures the metric and `column` where table `sweeps` holds it.

    `bound` is the largest loss of a sample, which the sequential test of `race` needs (None if there is none), `runs`
    says whether a whole run of layers has a value, which `block` needs, and `halves` whether half a layer has one.
    """

    name: str
    pass_: str
    column: str
    help: str
    bound: float | None = None
    runs: bool = False
    halves: bool = True


# The modules of passes that are not worth sharing between jobs; those that evaluate candidates go through the engine.
MODULES = {"gradient": "lamina.sweep.weights", "weights": "lamina.sweep.weights", "fit": "lamina.sweep.residuals"}

METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "removal", "correct", "share of the model's advantage over chance that is lost", bound=1.0),
        Metric("cosine", "stream", "cosine", "how much the unit turns the residual stream", runs=True),
        Metric("angular", "stream", "angular_last", "the same as an angle, at the last token", runs=True),
        Metric("perplexity", "removal", "nll", "how much the loss rises"),
        Metric("output_cosine", "removal", "output_cosine", "how far the output turns", bound=2.0),
        Metric("output_norm", "removal", "output_norm", "how far the output moves, by its norm"),
        Metric("output_js", "removal", "output_js", "Jensen-Shannon divergence of the output", bound=math.log(2)),
        Metric("output_kl", "removal", "output_kl", "Kullback-Leibler divergence of the output"),
        Metric("residual", "fit", "residual", "what no linear patch gives back of the stream", halves=False),
        Metric("taylor", "gradient", "taylor", "sum of abs(weight × gradient)"),
        Metric("magnitude", "weights", "magnitude", "sum of abs(weight)"),
    )
}


def those(condition: Callable[[Metric], object]) -> str:
    """`a, b or c`: the metrics that a condition holds for."""
    return listed(sorted(name for name, metric in METRICS.items() if condition(metric)))


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError
    return name


MetricName = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(METRICS)})]
