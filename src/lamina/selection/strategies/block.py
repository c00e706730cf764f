"""The contiguous run of layers with the smallest distance between its two ends [arXiv 2403.17887, eq. 7]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.options.entry import option
from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, metric_of_runs_option

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Block(Selector):
    """Removes the run of layers with the smallest distance between its ends."""

    LIMIT = ", and they go as one run"
    CAPTURED = True
    CHOICE = "the run of layers with the smallest distance went"

    strategy: Literal["block"] = "block"
    metric: MetricName = metric_of_runs_option()
    periods: Literal["any", "whole"] = option(
        "`whole` removes only runs after which each layer has the kind (full or sliding attention, "
        "RoPE base, experts) that its new number has in the base model. llama.cpp tells kinds by "
        "numbers, for some families vLLM too.",
        "any",
    )

    def largest_removal(self, n_layers: int) -> int:
        longest_run = 0
        run = 0
        for is_free in self.free(n_layers):
            run = run + 1 if is_free else 0
            longest_run = max(longest_run, run)
        return min(longest_run, n_layers - 1)


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """Layers s … s + n - 1 with the smallest distance between boundaries s and s + n; the deeper of equal runs."""
    n = request.removed
    starts = [start for start in range(request.n_layers - n + 1) if _can_go(request, start)]
    if not starts:
        return replace(
            previous,
            removed=n,
            refused=f"no run of {n} layers can be removed without shifting the pattern of kinds of "
            "layers (periods: whole). Write a multiple of the pattern's period for `removed`, "
            "unprotect the last layers, or leave `periods` out.",
        )
    start = min(starts, key=lambda start: (step.distances[start, n], -start))
    return replace(
        previous,
        removed=n,
        units=[str(layer) for layer in range(start, start + n)],
        scores=[step.distances[start, n]] * n,
    )


def _can_go(request: PlanRequest, start: int) -> bool:
    """Whether the run from `start` on is unprotected, and the cut leaves each later layer the kind of its new index."""
    end = start + request.removed
    if not request.protected.isdisjoint(range(start, end)):
        return False
    kinds = request.layer_kinds
    return kinds[end:] == kinds[start : len(kinds) - request.removed]
