"""Chooses the weight of general text in a fit for each plan: `data: {own: 1, general: auto}`.

The statistics of a fit are sums over tokens or samples. So one pass over the own calibration and
one over the general one serve every weight w of a grid, as S_own + w S_general.

Each plan gets one w for all its boundaries. It is the smallest w for which the repaired model's
loss on held-out general samples exceeds that of the pruned model without a repair by at most
`tolerance` nats per token. If no w is within the tolerance, the plan gets the w with the least
loss. All plans with all weights are candidates of one pass.

The compared patches were fitted without the held-out samples, which also choose the ridge. The
patches of all weights are kept in the host's memory: 2 · 7 C² float32 numbers per boundary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.engine.candidates import Candidate
from lamina.engine.moments import Statistics, Sums
from lamina.engine.sources import Source, draw_held_out
from lamina.models.boundary import Boundary, Patch
from lamina.repairs import harm, protocol
from lamina.repairs.protocol import Fit, Tensors

GRID = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
NO_REPAIR = None
"""Stands for the pruned model without a repair, in place of a weight."""

LossByWeight = dict[float | None, float]
"""Loss per token on held-out general samples, by weight, and by `NO_REPAIR` without a repair."""


class WeightColumns(TypedDict):
    """Columns of table `patches`: the chosen weight, and what the repair does to general text."""

    auto_weight: float
    general_loss_before: float
    """Nats per token of the pruned model without a repair."""
    general_loss: float
    """Nats per token of the repaired model."""
    general_kept: bool
    """Whether the loss is within the tolerance."""
    n_general: int
    """Number of held-out general samples."""


@dataclass(frozen=True)
class WeighedGroup:
    """Plans with the same weight."""

    sources: list[Source]
    """The sources that their repairs are fitted on."""
    fits: dict[Boundary, Fit]
    plan_columns: dict[int, WeightColumns]
    """Columns of each plan, by size."""


def group_plans(
    model: PreTrainedModel,
    calibrations: Mapping[str, CalibrationSamples],
    plans: Sequence[Mapping[str, Any]],
    boundaries: Mapping[int, Sequence[Boundary]],
    options: Any,
    seed: int,
) -> Iterator[WeighedGroup]:
    """The plans of one selector, grouped by their chosen weight.

    calibrations: By name; the variants' own comes first.
    boundaries: The runs of each plan, by its size.
    options: The repair's options; its method is a linear map of the stream.
    """
    general_names = options.automatic(next(iter(calibrations)))
    sources_by_weight = {weight: _sources(calibrations, options, weight) for weight in GRID}
    own_sources = sources_by_weight[0.0]
    # Both passes list all sources in the same order, and give weight 0 to those that they skip, so
    # that both hold out the same documents.
    general_sources = [
        replace(source, weight=float(name in general_names))
        for name, source in zip(calibrations, own_sources, strict=True)
    ]

    all_boundaries = protocol.unite_boundaries(boundaries.values())
    fits_by_weight = _fit_all_weights(
        model, own_sources, general_sources, all_boundaries, options, seed
    )
    heldout_samples = _heldout_samples(calibrations, general_sources, seed)
    loss_by_plan = _measure_losses(
        model, heldout_samples, plans, boundaries, fits_by_weight, options
    )
    plan_columns = choose_weights(loss_by_plan, options.tolerance, len(heldout_samples))

    for weight, sources in sources_by_weight.items():
        columns_of_weight = {
            size: columns
            for size, columns in plan_columns.items()
            if columns["auto_weight"] == weight
        }
        if not columns_of_weight:
            continue
        needed_boundaries = protocol.unite_boundaries(
            boundaries[size] for size in columns_of_weight
        )
        group_fits = {boundary: fits_by_weight[weight][boundary] for boundary in needed_boundaries}
        yield WeighedGroup(sources, group_fits, columns_of_weight)


def _sources(
    calibrations: Mapping[str, CalibrationSamples], options: Any, general_weight: float
) -> list[Source]:
    """All calibrations with the weights of their tokens."""
    weights = options.weights(next(iter(calibrations)), general_weight)
    return [Source(calibrations[name].sequences(), weights[name]) for name in calibrations]


def mix_statistics(
    own_statistics: Statistics[Any], general_statistics: Statistics[Any], weight: float
) -> Statistics[Any]:
    """The sum of both statistics; every token of general text counts `weight` times."""
    if not weight:
        return own_statistics
    return Statistics(
        fit=own_statistics.fit.plus(_scale_sums(general_statistics.fit, weight)),
        heldout=own_statistics.heldout.plus(_scale_sums(general_statistics.heldout, weight)),
        n_samples=own_statistics.n_samples + general_statistics.n_samples,
    )


def _scale_sums(sums: Sums, weight: float) -> Sums:
    """Sums times a weight; `tokens`, which is a count, is not scaled."""
    scaled_sums: dict[str, Any] = {}
    for name, value in vars(sums).items():
        if name != "tokens" and value is not None:
            scaled_sums[name] = value * weight
    return replace(sums, **scaled_sums)  # type: ignore[type-var]


def _fit_all_weights(
    model: PreTrainedModel,
    own_sources: Sequence[Source],
    general_sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Any,
    seed: int,
) -> dict[float, dict[Boundary, Fit]]:
    """The fits of every boundary with every weight of the grid."""
    method = protocol.load_method(options.method)
    own_statistics = method.collect(model, own_sources, boundaries, options, seed)
    general_statistics = method.collect(model, general_sources, boundaries, options, seed)
    fits_by_weight: dict[float, dict[Boundary, Fit]] = {weight: {} for weight in GRID}
    for (boundary, own), (_, general) in zip(own_statistics, general_statistics, strict=True):
        for weight, fits in fits_by_weight.items():
            fit = method.fit(mix_statistics(own, general, weight), options)
            fits[boundary] = replace(
                fit, tensors=_move_to_host(fit.tensors), validated=_move_to_host(fit.validated)
            )
    return fits_by_weight


def _move_to_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _heldout_samples(
    calibrations: Mapping[str, CalibrationSamples], general_sources: Sequence[Source], seed: int
) -> list[Sample]:
    """The held-out samples of the general calibrations, which are those of weight above 0."""
    heldout_samples: list[Sample] = []
    flags_of_sources = draw_held_out(general_sources, seed)
    for calibration, source, is_heldout in zip(
        calibrations.values(), general_sources, flags_of_sources, strict=True
    ):
        if not source.weight:
            continue
        for sample, flag in zip(calibration.samples, is_heldout, strict=True):
            if flag:
                heldout_samples.append(sample)
    return heldout_samples


def _measure_losses(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    plans: Sequence[Mapping[str, Any]],
    boundaries: Mapping[int, Sequence[Boundary]],
    fits_by_weight: Mapping[float, Mapping[Boundary, Fit]],
    options: Any,
) -> dict[int, LossByWeight]:
    """The losses of all plans on some samples, by plan size."""
    method = protocol.load_method(options.method)
    # One object for each fit: plans with the same run share it, so that their streams stay one.
    patches_by_weight: dict[float, dict[Boundary, Patch]] = {}
    for weight, fits in fits_by_weight.items():
        patches_by_weight[weight] = {
            boundary: cast(Patch, method.as_patch(fit.validated)) for boundary, fit in fits.items()
        }

    candidates: dict[tuple[int, float | None], Candidate] = {}
    for plan in plans:
        size = plan["removed"]
        units = frozenset(plan["units"])
        for weight, patches in patches_by_weight.items():
            plan_patches = {boundary: patches[boundary] for boundary in boundaries[size]}
            candidates[size, weight] = Candidate(units, plan_patches)
        candidates[size, NO_REPAIR] = Candidate(units)

    loss_by_plan: dict[int, LossByWeight] = {plan["removed"]: {} for plan in plans}
    measured_losses = harm.measure_losses(model, samples, candidates, plans)
    for (size, weight_or_none), nll_and_tokens in measured_losses.items():
        nll, n_tokens = nll_and_tokens.sum(axis=0)
        loss_by_plan[size][weight_or_none] = float(nll / n_tokens)
    return loss_by_plan


def choose_weights(
    loss_by_plan: Mapping[int, Mapping[float | None, float]], tolerance: float, n_samples: int
) -> dict[int, WeightColumns]:
    """Choose the weight of each plan, by its size.

    loss_by_plan: Losses per token, by plan size and weight; `NO_REPAIR` has the one without a
        repair.
    n_samples: The number of samples behind these losses.
    """
    plan_columns: dict[int, WeightColumns] = {}
    for size, loss_by_weight in loss_by_plan.items():
        loss_before = loss_by_weight[NO_REPAIR]
        tolerated_weights = [
            chosen_weight
            for chosen_weight in GRID
            if loss_by_weight[chosen_weight] <= loss_before + tolerance
        ]
        if tolerated_weights:
            chosen_weight = tolerated_weights[0]
        else:
            chosen_weight = min(GRID, key=loss_by_weight.__getitem__)
        plan_columns[size] = {
            "auto_weight": chosen_weight,
            "general_loss_before": loss_before,
            "general_loss": loss_by_weight[chosen_weight],
            "general_kept": bool(tolerated_weights),
            "n_general": n_samples,
        }
    return plan_columns
