"""The passes that measure metrics, and the passes that they carry along."""

from collections.abc import Iterable

from lamina.config.metrics import METRICS

# The pass whose metrics another pass measures along the way.
CARRIED = {"removal": "stream", "gradient": "weights"}


def metric_pass(metric: str) -> str:
    """The cheapest pass that measures a metric."""
    return METRICS[metric].pass_


def passes(metrics: Iterable[str]) -> list[str]:
    """Passes that measure several metrics. A removal pass carries stream metrics, a gradient pass carries weights."""
    needed = {metric_pass(metric) for metric in metrics}
    return sorted(needed - {CARRIED.get(name) for name in needed})


def carried(pass_: str) -> list[str]:
    """The passes whose metrics one pass measures: itself, and the pass that it carries along."""
    return [pass_, *([CARRIED[pass_]] if pass_ in CARRIED else [])]
