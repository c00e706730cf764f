"""The relevance metrics: which pass measures each, and which strategies may use it.

An entry holds the class attributes of a metric in `lamina.relevance.metrics`, where its formula
stands. They are read from the source, because the configuration imports nothing that computes
numbers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated

from pydantic import AfterValidator, Field

from lamina.options.explain import join_words
from lamina.registry import declared_classes


@dataclass(frozen=True)
class MetricEntry:
    """The attributes of `lamina.relevance.protocol.Metric`, and the `module` that has the class."""

    name: str
    module: str
    pass_: str
    columns: tuple[str, ...]
    help: str
    runs: bool = False
    remedy: str = ""

    @property
    def removes(self) -> bool:
        """Whether it compares models without a unit with the model that has it.

        Then every sample has a loss whose mean ranks removals, which searches need.
        """
        return self.pass_ == "removal"

    @property
    def writes(self) -> bool:
        """Whether models write answers, which only tasks with an exact match can judge."""
        return self.pass_ == "generate"

    @property
    def outputs(self) -> bool:
        """Whether it compares outputs with those of the base model."""
        return any(column.startswith("output_") for column in self.columns)


# Modules of passes that jobs do not share; the engine runs the passes that evaluate candidates.
MODULES = {
    "gradient": "lamina.engine.weights",
    "weights": "lamina.engine.weights",
    "generate": "lamina.evaluation.written_removals",
}

# What the class of a metric says of it.
ATTRIBUTES = tuple(field.name for field in fields(MetricEntry) if field.name != "module")


def _declared_metrics() -> dict[str, MetricEntry]:
    """All metrics by name, in alphabetical order."""
    declared_attributes = declared_classes("lamina.relevance.metrics", "Metric", ATTRIBUTES)
    metrics = [
        MetricEntry(module=module, **attributes) for module, attributes in declared_attributes
    ]
    return {metric.name: metric for metric in sorted(metrics, key=lambda metric: metric.name)}


METRICS = _declared_metrics()


def metrics_where(condition: Callable[[MetricEntry], bool]) -> str:
    """`a, b or c`: the metrics for which a condition holds."""
    return join_words(sorted(name for name, metric in METRICS.items() if condition(metric)))


def _check_metric_name(name: str) -> str:
    if name not in METRICS:
        raise ValueError
    return name


MetricName = Annotated[
    str, AfterValidator(_check_metric_name), Field(json_schema_extra={"enum": list(METRICS)})
]

# The pass whose metrics another pass measures along the way.
CARRIED = {"removal": "stream", "gradient": "weights"}


def passes_of(metrics: Iterable[str]) -> list[str]:
    """The passes that measure several metrics, without those that another one carries along."""
    needed_passes = {METRICS[metric].pass_ for metric in metrics}
    carried_along = {CARRIED[name] for name in needed_passes if name in CARRIED}
    return sorted(needed_passes - carried_along)


def carried_passes(pass_: str) -> list[str]:
    """The passes whose metrics one pass measures: itself, and the pass that it carries along."""
    if pass_ not in CARRIED:
        return [pass_]
    return [pass_, CARRIED[pass_]]
