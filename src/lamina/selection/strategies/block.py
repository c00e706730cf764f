"""The contiguous run of layers with the smallest distance between its two ends [arXiv 2403.17887, eq. 7]."""

from dataclasses import replace

from lamina.selection.plans import Plan, Request, Step


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """Layers s … s + n - 1 with the smallest distance between boundaries s and s + n; the deeper of equal runs."""
    n = request.removed
    runs = [start for start in range(request.n_layers - n + 1) if request.protected.isdisjoint(range(start, start + n))]
    start = min(runs, key=lambda s: (step.angles[s, n], -s))
    units = [str(layer) for layer in range(start, start + n)]
    return replace(previous, removed=n, units=units, scores=[step.angles[start, n]] * n)
