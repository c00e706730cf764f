"""The relevance metrics, one entry each: which pass measures a metric, and which strategies may use it.

An entry is the class attributes of a metric in `lamina.relevance.metrics`, beside its formula. They are read from the
source, since the configuration imports nothing of what computes numbers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated

from pydantic import AfterValidator, Field

from lamina.config.explain import listed
from lamina.registry import declared_classes


@dataclass(frozen=True)
class Metric:
    """The attributes of `lamina.relevance.protocol.Metric`, and the `module` that has the class."""

    name: str
    module: str
    pass_: str
    columns: tuple[str, ...]
    help: str
    bound: float | None = None
    signed: bool = False
    adds: bool = True
    runs: bool = False
    sublayers: bool = True
    remedy: str = ""

    @property
    def removes(self) -> bool:
        """Whether it compares models without a unit with the model that has it."""
        return self.pass_ == "removal"

    @property
    def losing(self) -> bool:
        """Whether every sample has a loss whose mean ranks removals; budgets and searches compare such losses."""
        return self.removes and self.adds

    @property
    def outputs(self) -> bool:
        """Whether it compares outputs with the unpruned model's."""
        return any(column.startswith("output_") for column in self.columns)


# Modules of passes that jobs do not share; the engine runs the passes that evaluate candidates.
MODULES = {
    "gradient": "lamina.engine.weights",
    "weights": "lamina.engine.weights",
    "fit": "lamina.selection.residuals",
}

# What the class of a metric says of it.
ATTRIBUTES = tuple(field.name for field in fields(Metric) if field.name != "module")

METRICS = {
    entry["name"]: Metric(module=module, **entry)
    for module, entry in sorted(
        declared_classes("lamina.relevance.metrics", "Metric", ATTRIBUTES),
        key=lambda found: str(found[1]["name"]),
    )
}


def those(condition: Callable[[Metric], object]) -> str:
    """`a, b or c`: the metrics for which a condition holds."""
    return listed(sorted(name for name, metric in METRICS.items() if condition(metric)))


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError
    return name


MetricName = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": list(METRICS)})
]


CARRIED = {
    "removal": "stream",
    "gradient": "weights",
}  # the pass whose metrics another pass measures along the way


def passes(metrics: Iterable[str]) -> list[str]:
    """Passes that measure several metrics. A removal pass carries stream metrics, a gradient pass carries weights."""
    needed = {METRICS[metric].pass_ for metric in metrics}
    return sorted(needed - {CARRIED.get(name) for name in needed})


def carried(pass_: str) -> list[str]:
    """The passes whose metrics one pass measures: itself, and the pass that it carries along."""
    return [pass_, *([CARRIED[pass_]] if pass_ in CARRIED else [])]
