"""A seeded random choice, the baseline for every selector."""

from dataclasses import replace
from random import Random

from lamina.selection.plans import Plan, Request, Step


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The first `request.removed` of a seeded permutation, so that plans of one seed are nested."""
    layers = [layer for layer in range(request.n_layers) if layer not in request.protected]
    Random(request.seed).shuffle(layers)
    units = [request.name(layer) for layer in layers[: request.removed]]
    return replace(previous, removed=request.removed, units=units)
