"""The run of layers with the smallest distance between its ends [arXiv 2403.17887, eq. 7]."""

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

    LIMIT = ", and layers are removed as one run"
    CAPTURED = True
    CHOICE = "the run of layers with the smallest distance was removed"

    strategy: Literal["block"] = "block"
    metric: MetricName = metric_of_runs_option()
    periods: Literal["any", "whole"] = option(
        "With `whole`, each remaining layer has the kind (full or sliding attention, RoPE base, "
        "experts) of the base model's layer with the same index. llama.cpp derives kinds from "
        "indices, and so does vLLM for some families.",
        "any",
    )

    def largest_removal(self, n_layers: int) -> int:
        return min(self.longest_free_run(n_layers), n_layers - 1)

    def most_runs(self, size: int) -> int:
        return 1


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """Layers s … s + n - 1 with the smallest distance between boundaries s and s + n.

    Of equal runs, the deeper one is removed.
    """
    n = request.removed
    starts = [start for start in range(request.n_layers - n + 1) if _is_removable(request, start)]
    if not starts:
        return replace(
            previous,
            removed=n,
            refused=f"no run of {n} layers can be removed: with `periods: whole`, every later "
            "layer must keep the kind of its new index. Make `removed` a multiple of the period "
            "in which kinds of layers repeat, protect fewer layers, or leave out `periods`.",
        )
    start = min(starts, key=lambda start: (step.distances[start, n], -start))
    return replace(
        previous,
        removed=n,
        units=[str(layer) for layer in range(start, start + n)],
        scores=[step.distances[start, n]] * n,
    )


def _is_removable(request: PlanRequest, start: int) -> bool:
    """Whether the run from `start` is unprotected, and later layers may take their new indices."""
    end = start + request.removed
    if not request.protected.isdisjoint(range(start, end)):
        return False
    kinds = request.layer_kinds
    return kinds[end:] == kinds[start : len(kinds) - request.removed]
