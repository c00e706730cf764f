"""Which pass measures a metric, which metrics a pass measures along the way, and which passes draw models."""

from collections.abc import Iterable

from lamina.config.metrics import METRICS

# The pass whose metrics another pass measures along the way.
CARRIED = {"removal": "stream", "gradient": "weights"}
# Passes over random cut models.
DRAWN = ("shapley", "presence")


def metric_pass(metric: str) -> str:
    """The cheapest pass that measures a metric."""
    return METRICS[metric].pass_


def passes(metrics: Iterable[str]) -> list[str]:
    """Passes that measure several metrics: a removal pass carries the stream metrics along, a gradient the weights."""
    needed = {metric_pass(metric) for metric in metrics}
    return sorted(needed - {CARRIED.get(name) for name in needed})


def carried(pass_: str) -> list[str]:
    """The passes whose metrics one pass measures: itself, and what it carries along."""
    return [pass_, *([CARRIED[pass_]] if pass_ in CARRIED else [])]
