"""Fits one repair for the plans of a selector at several sizes.

`sort_plans` finds the runs to repair, `fit_plans` fits them, and `record_fits` returns the tensors
of the patch file and the rows of table `patches`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples
from lamina.engine import taps
from lamina.engine.sources import Source, draw_held_out
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch, check_boundaries
from lamina.models.surgery import find_runs
from lamina.options.repairs import Repair
from lamina.repairs import check, harm, patch, protocol
from lamina.repairs.operators import describe_operator
from lamina.repairs.protocol import Fit, Tensors
from lamina.variant import Variant

PlanRecord = Mapping[str, Any]
"""A plan, as its JSON file holds it."""

Columns = dict[str, Any]
"""Columns of table `patches`, by name."""


@dataclass(frozen=True)
class RefusedRun:
    """A run of a plan's removed units that the method cannot repair."""

    plan: PlanRecord
    boundary: Boundary
    reason: str


@dataclass(frozen=True)
class FitRequest:
    """The plans for which a repair is fitted."""

    options: Repair
    """The repair's entry in the configuration."""
    plans: dict[int, PlanRecord] = field(default_factory=dict)
    """The plans that it can repair, by size."""
    boundaries: dict[int, list[Boundary]] = field(default_factory=dict)
    """The runs of each of these plans, by size."""
    refusals: list[RefusedRun] = field(default_factory=list)
    whole_sizes: list[int] = field(default_factory=list)
    """Sizes of the plans that only move layers, where there is nothing to repair."""

    @property
    def reasons(self) -> dict[int, str]:
        """Why plans have no repair, by size: what is wrong with the first run that is refused."""
        reason_by_size: dict[int, str] = {}
        for refusal in reversed(self.refusals):
            reason_by_size[refusal.plan["removed"]] = refusal.reason
        return reason_by_size


@dataclass(frozen=True)
class FittedGroup:
    """The fits of plans that share their samples and their weights."""

    tensors: Mapping[Boundary, Tensors]
    boundary_columns: Mapping[Boundary, Columns]
    """Columns of each fit that are the same for all plans."""
    plan_columns: Mapping[int, Mapping[str, Any]]
    """Columns of each plan that are the same for all boundaries, by size."""


def sort_plans(plans: Iterable[PlanRecord], depth: int, options: Repair) -> FitRequest:
    """Sort out which plans a repair with these options can be fitted for.

    Plans without units were refused when they were made, and are left out.

    depth: Number of layers of the base model.
    """
    fit_request = FitRequest(options)
    for plan in plans:
        if not plan["units"]:
            continue
        boundaries = find_runs(plan["units"], depth)
        if not boundaries:
            fit_request.whole_sizes.append(plan["removed"])
            continue
        refusals: list[RefusedRun] = []
        for boundary in boundaries:
            reason = protocol.find_refusal(options, boundary, plan["units"])
            if reason:
                refusals.append(RefusedRun(plan, boundary, reason))
        if refusals:
            fit_request.refusals.extend(refusals)
        else:
            fit_request.plans[plan["removed"]] = plan
            fit_request.boundaries[plan["removed"]] = boundaries
    return fit_request


def fit_plans(
    model: PreTrainedModel,
    request: FitRequest,
    calibrations: Mapping[str, CalibrationSamples],
    weights: Sequence[tuple[str, float]],
    seed: int,
) -> list[FittedGroup]:
    """Fit the repair for all plans of a request.

    calibrations: The calibrations of the fit, by name; the variants' own comes first.
    weights: The weight of a token of each calibration; empty if each plan gets a chosen weight.
    """
    for size, plan in request.plans.items():
        check_boundaries(model, plan["units"], dict.fromkeys(request.boundaries[size]))

    fitter = _Fitter(model, request, calibrations, seed)
    if not weights:
        return fitter.fit_with_chosen_weights()
    sources = [Source(calibrations[name].sequences(), weight) for name, weight in weights]
    if request.options.chain:
        return fitter.fit_run_after_run(request.options.chain, sources)
    return [fitter.fit_all_runs(sources)]


class _Fitter:
    """The three ways to fit a repair: all runs at once, run after run, or with chosen weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        request: FitRequest,
        calibrations: Mapping[str, CalibrationSamples],
        seed: int,
    ) -> None:
        self.model = model
        self.request = request
        self.calibrations = calibrations
        self.seed = seed
        self.method = protocol.load_method(request.options.method)

    def fit_all_runs(self, sources: Sequence[Source]) -> FittedGroup:
        """Fit the runs of all plans on the statistics of one pass."""
        options = self.request.options
        boundaries = protocol.unite_boundaries(self.request.boundaries.values())
        collected_statistics = self.method.collect(
            self.model, sources, boundaries, options, self.seed
        )
        fits = {
            boundary: self.method.fit(statistics, options)
            for boundary, statistics in collected_statistics
        }
        boundary_columns = self._boundary_columns(sources, fits)
        plan_columns: dict[int, Columns] = {size: {} for size in self.request.plans}
        return self._finish_group(sources, fits, boundary_columns, plan_columns)

    def fit_run_after_run(self, chain_module: str, sources: Sequence[Source]) -> list[FittedGroup]:
        """Fit each run of a plan after the earlier ones are repaired: a group for each plan."""
        chain = import_module(chain_module)
        groups: list[FittedGroup] = []
        for size, boundaries in self.request.boundaries.items():
            fits, runs_before = chain.fit(
                self.model,
                self.request.plans[size],
                sources,
                boundaries,
                self.request.options,
                self.seed,
            )
            boundary_columns: dict[Boundary, Columns] = {}
            for boundary, fit in fits.items():
                boundary_columns |= self._boundary_columns(
                    sources, {boundary: fit}, runs_before[boundary]
                )
            groups.append(self._finish_group(sources, fits, boundary_columns, {size: {}}))
        return groups

    def fit_with_chosen_weights(self) -> list[FittedGroup]:
        """Fit with the weight of general text that each plan needs: a group for each weight."""
        weighing = import_module("lamina.repairs.weighing")
        weighed_groups = weighing.group_plans(
            self.model,
            self.calibrations,
            list(self.request.plans.values()),
            self.request.boundaries,
            self.request.options,
            self.seed,
        )
        groups: list[FittedGroup] = []
        for weighed in weighed_groups:
            boundary_columns = self._boundary_columns(weighed.sources, weighed.fits)
            groups.append(
                self._finish_group(
                    weighed.sources, weighed.fits, boundary_columns, weighed.plan_columns
                )
            )
        return groups

    def _boundary_columns(
        self,
        sources: Sequence[Source],
        fits: Mapping[Boundary, Fit],
        run: taps.Run = taps.run_sequences,
    ) -> dict[Boundary, Columns]:
        """Columns of each fit; errors by token and the operator's shape if it is a linear map.

        run: The pass that gives the streams on which errors are measured.
        """
        validated_patches: dict[Boundary, Patch] = {}
        for boundary, fit in fits.items():
            validated_patch = self.method.as_patch(fit.validated)
            if validated_patch is not None:
                validated_patches[boundary] = validated_patch
        token_errors: dict[Boundary, check.TokenErrors] = {}
        if validated_patches:
            token_errors = check.measure_patches(
                self.model, sources, validated_patches, self.seed, run=run
            )

        columns_by_boundary: dict[Boundary, Columns] = {}
        for boundary, fit in fits.items():
            columns_by_boundary[boundary] = dict(fit.facts)
            final_patch = self.method.as_patch(fit.tensors)
            if final_patch is not None:
                columns_by_boundary[boundary].update(describe_operator(final_patch))
                columns_by_boundary[boundary].update(token_errors[boundary])
        return columns_by_boundary

    def _finish_group(
        self,
        sources: Sequence[Source],
        fits: Mapping[Boundary, Fit],
        boundary_columns: Mapping[Boundary, Columns],
        plan_columns: Mapping[int, Mapping[str, Any]],
    ) -> FittedGroup:
        """The finished group of fits, with the harm that they do if the model can be measured.

        sources: The sources of the fits; the first is the variants' own calibration.
        """
        own_samples = next(iter(self.calibrations.values())).samples
        is_heldout = draw_held_out(sources, self.seed)[0]
        heldout_samples = [
            sample
            for sample, is_own_heldout in zip(own_samples, is_heldout, strict=True)
            if is_own_heldout
        ]
        loss_columns: dict[int, harm.LossColumns] = {}
        try:
            loss_columns = harm.measure_harm(
                self.model,
                self.request.options.method,
                [self.request.plans[size] for size in plan_columns],
                self.request.boundaries,
                heldout_samples,
                fits,
            )
        except LaminaError as refusal:
            logging.getLogger(__name__).warning(
                "Whether the repair helps is not measured. %s", refusal
            )

        tensors_by_boundary = {boundary: fit.tensors for boundary, fit in fits.items()}
        all_plan_columns = {
            size: {**columns, **loss_columns.get(size, {})}
            for size, columns in plan_columns.items()
        }
        return FittedGroup(tensors_by_boundary, boundary_columns, all_plan_columns)


def record_fits(
    request: FitRequest, groups: Iterable[FittedGroup], repair_name: str
) -> tuple[dict[str, torch.Tensor], list[Columns]]:
    """The tensors of the patch file, and the rows of table `patches`."""
    patch_tensors: dict[str, torch.Tensor] = {}
    patch_rows: list[Columns] = []
    for refusal in request.refusals:
        patch_rows.append(
            _row(refusal.plan, repair_name, refusal.boundary, {"refused": refusal.reason})
        )
    for group in groups:
        for size, plan in request.plans.items():
            if size not in group.plan_columns:
                continue
            boundaries = request.boundaries[size]
            plan_tensors = {boundary: group.tensors[boundary] for boundary in boundaries}
            patch_tensors |= patch.name_tensors(size, plan_tensors)
            for boundary in boundaries:
                row_columns = {**group.boundary_columns[boundary], **group.plan_columns[size]}
                patch_rows.append(_row(plan, repair_name, boundary, row_columns))
    return patch_tensors, patch_rows


def _row(
    plan: PlanRecord, repair_name: str, boundary: Boundary, columns: Mapping[str, Any]
) -> Columns:
    """A row of table `patches`: keys of the variant and of the boundary, then the columns."""
    variant = Variant(
        model=plan["model"],
        calibration=plan["calibration"],
        selector=plan["selector"],
        removed=plan["removed"],
        repair=repair_name,
    )
    start, end = boundary
    return {
        **variant.row(),
        "boundary": f"{start}-{end}",
        "start": start,
        "end": end,
        **columns,
    }
