"""The weight of general text beside the task, chosen for each plan: `data: {own: 1, general: auto}`.

The statistics of a fit are sums over tokens or samples. So one pass over the own and one over the general calibration
serve every weight w of a grid, as S_own + w S_general. Each plan gets one w for all its boundaries: the smallest w with
which the repaired model loses on held-out general samples at most `tolerance` nats per token more than the pruned model
without a repair. If no w is within the tolerance, the plan gets the w with the least loss. All plans and weights are
candidates of one pass.

The compared patches were fitted without the held-out samples (which choose a ridge, as always). The patches of all
weights are kept in the host's memory: 2 · 7 C² float32 numbers per boundary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Calibration, Sample
from lamina.engine.candidates import Candidate
from lamina.engine.moments import Statistics, Sums
from lamina.engine.sources import Source, split
from lamina.models.boundary import Boundary, Patch
from lamina.repair import fitting, protocol
from lamina.repair.protocol import Fit, Tensors

GRID = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

Group = tuple[list[Source], dict[Boundary, Fit], dict[int, dict[str, Any]]]
"""What plans with the same weight are fitted on, their fits, and by plan size columns of table `patches`."""


def groups(
    model: PreTrainedModel,
    read: Mapping[str, Calibration],
    plans: Sequence[Mapping[str, Any]],
    wanted: Mapping[int, Sequence[Boundary]],
    options: Any,
    seed: int,
) -> Iterator[Group]:
    """The plans of one selector, grouped by their chosen weight.

    read: Calibrations by name, the variants' own first.
    wanted: The boundaries of each plan, by its size.
    options: Options of the repair, whose method is a linear map of the stream.
    """
    automatic = options.automatic(next(iter(read)))
    grid = {weight: _sources(read, options, weight) for weight in GRID}
    every = sorted({boundary for part in wanted.values() for boundary in part})
    # All sources are told in the same order everywhere, those that a pass leaves out with weight 0: one draw for all.
    general = [
        replace(source, weight=float(name in automatic))
        for name, source in zip(read, grid[0.0], strict=True)
    ]
    fits = _fits(model, grid[0.0], general, every, options, seed)
    held = [
        sample
        for name, flags in zip(read, split(general, seed), strict=True)
        for sample, out in zip(read[name].samples, flags, strict=True)
        if out and name in automatic
    ]
    facts = _chosen(
        _losses(model, held, plans, wanted, fits, options), options.tolerance, len(held)
    )
    for weight, sources in grid.items():
        here = {removed: fact for removed, fact in facts.items() if fact["auto_weight"] == weight}
        if here:
            needed = {boundary for removed in here for boundary in wanted[removed]}
            yield sources, {boundary: fits[weight][boundary] for boundary in sorted(needed)}, here


def mixed(one: Statistics[Any], other: Statistics[Any], weight: float) -> Statistics[Any]:
    """Sum of both statistics, where every token of `other` counts `weight` times."""
    if not weight:
        return one
    fit, heldout = (
        one.fit.plus(_times(other.fit, weight)),
        one.heldout.plus(_times(other.heldout, weight)),
    )
    return Statistics(fit, heldout, one.n_samples + other.n_samples)


def _times(sums: Sums, weight: float) -> Sums:
    """Sums times a weight. All sums are linear in the weight of a row except for `tokens`, which is a count."""
    linear = {
        name: value for name, value in vars(sums).items() if name != "tokens" and value is not None
    }
    return replace(sums, **{name: value * weight for name, value in linear.items()})  # type: ignore[type-var]


def _sources(read: Mapping[str, Calibration], options: Any, weight: float) -> list[Source]:
    named = options.weights(next(iter(read)), weight)
    return [Source(read[name].sequences(), named[name]) for name in read]


def _fits(
    model: PreTrainedModel,
    fixed: Sequence[Source],
    general: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Any,
    seed: int,
) -> dict[float, dict[Boundary, Fit]]:
    """The fits of every boundary with every weight of the grid."""
    method = protocol.method(options.method)
    collected = (
        method.collect(model, part, boundaries, options, seed) for part in (fixed, general)
    )
    fits_by_weight: dict[float, dict[Boundary, Fit]] = {weight: {} for weight in GRID}
    for (boundary, one), (_, other) in zip(*collected, strict=True):
        for weight, fits in fits_by_weight.items():
            fit = method.fit(mixed(one, other, weight), options)
            fits[boundary] = replace(
                fit, tensors=_on_host(fit.tensors), validated=_on_host(fit.validated)
            )
    return fits_by_weight


def _on_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _losses(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    plans: Sequence[Mapping[str, Any]],
    wanted: Mapping[int, Sequence[Boundary]],
    fits: Mapping[float, Mapping[Boundary, Fit]],
    options: Any,
) -> dict[int, dict[float | None, float]]:
    """Loss per token by plan size and weight; weight None is the pruned model without a repair."""
    as_patch = protocol.method(options.method).as_patch
    # Plans with the same run share the object, so that their streams stay one.
    patches: dict[float | None, dict[Boundary, Patch]] = {
        weight: {
            boundary: cast(Patch, as_patch(fit.validated))
            for boundary, fit in fits_of_weight.items()
        }
        for weight, fits_of_weight in fits.items()
    }
    patches[None] = {}
    everyone = {
        (plan["removed"], weight): Candidate(
            frozenset(plan["units"]),
            {run: made[run] for run in wanted[plan["removed"]] if run in made},
        )
        for plan in plans
        for weight, made in patches.items()
    }
    losses: dict[int, dict[float | None, float]] = {plan["removed"]: {} for plan in plans}
    for (removed, weight), rows in fitting.losses(model, samples, everyone, plans).items():
        nll, tokens = rows.sum(axis=0)
        losses[removed][weight] = float(nll / tokens)
    return losses


def _chosen(
    losses: Mapping[int, Mapping[float | None, float]], tolerance: float, n_samples: int
) -> dict[int, dict[str, Any]]:
    """The columns of table `patches` for each plan, by its size."""
    chosen = {}
    for removed, by_weight in losses.items():
        before = by_weight[None]
        within = [weight for weight in GRID if by_weight[weight] <= before + tolerance]
        weight = within[0] if within else min(GRID, key=lambda each: by_weight[each])
        chosen[removed] = {
            "auto_weight": weight,
            "general_loss_before": before,
            "general_loss": by_weight[weight],
            "general_kept": bool(within),
            "n_general": n_samples,
        }
    return chosen
