"""The contiguous run of layers with the smallest distance between its two ends [arXiv 2403.17887, eq. 7]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import option
from lamina.config.metrics import MetricName
from lamina.config.selectors import Selector, metric_of_runs_option

if TYPE_CHECKING:
    from lamina.selection.plans import Plan, Request, Step


class Block(Selector):
    """Removes the run of layers with the smallest distance between its ends."""

    LIMIT = ", and they go as one run"
    CAPTURED = True
    CHOICE = "the run of layers with the smallest distance went"

    strategy: Literal["block"] = "block"
    metric: MetricName = metric_of_runs_option()
    periods: Literal["any", "whole"] = option(
        "`whole` removes only runs that leave each layer of the kind (full or sliding attention, RoPE base, experts) "
        "that its new number has in the unpruned model. llama.cpp tells kinds by numbers, for some "
        "families vLLM too.",
        "any",
    )

    def largest_removal(self, n_layers: int) -> int:
        runs = "".join("x" if is_free else " " for is_free in self.free(n_layers)).split()
        return min(max(map(len, runs), default=0), n_layers - 1)


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """Layers s … s + n - 1 with the smallest distance between boundaries s and s + n; the deeper of equal runs."""
    n, depth, kinds = request.removed, request.n_layers, request.kinds
    free = [s for s in range(depth - n + 1) if request.protected.isdisjoint(range(s, s + n))]
    # The layers behind the run move down by n.
    runs = [start for start in free if kinds[start + n :] == kinds[start : len(kinds) - n]]
    if not runs:
        reason = f"no run of {n} layers can go without shifting the pattern of kinds of layers (periods: whole)"
        remedy = "Write a multiple of the pattern's period for `removed`, unprotect the last layers, or leave `periods` out"
        return replace(previous, removed=n, refused=f"{reason}. {remedy}.")
    start = min(runs, key=lambda s: (step.angles[s, n], -s))
    units = [str(layer) for layer in range(start, start + n)]
    return replace(previous, removed=n, units=units, scores=[step.angles[start, n]] * n)
