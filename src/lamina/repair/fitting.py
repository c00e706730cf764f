"""One repair, fitted for the plans of a selector of several sizes, and the rows of table `patches`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Calibration
from lamina.engine import taps
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary
from lamina.modules import load
from lamina.repair import check, fit_rows, fits, patch, protocol
from lamina.repair.protocol import Tensors
from lamina.stages.fit_patch import FitPatch
from lamina.study.variant import Variant

Group = tuple[Mapping[Boundary, Tensors], Mapping[Boundary, dict[str, Any]], Mapping[int, dict[str, Any]]]
"""Tensors and columns of table `patches` of boundaries, and by plan size more columns of those that use them."""


@dataclass(frozen=True)
class Asked:
    """What a repair is asked for.

    Attributes
    ----------
    plans : those that it can repair.
    wanted : the boundaries of each of them, by its size.
    refused : rows of table `patches` for the boundaries that it cannot repair.
    reasons : why the others have no repair, by their sizes.
    """

    plans: list[Mapping[str, Any]]
    wanted: dict[int, list[Boundary]]
    refused: list[dict[str, Any]]
    reasons: dict[int, str]

    @property
    def boundaries(self) -> list[Boundary]:
        """All of them, from the first layer on."""
        return sorted({boundary for part in self.wanted.values() for boundary in part})


def asked(job: FitPatch, plans: Iterable[Mapping[str, Any]], depth: int) -> Asked:
    """What the job's repair is asked for, by plans of a model with `depth` layers."""
    left, wanted, rows, reasons = [], {}, [], {}
    method = protocol.method(job.repair.method)
    for plan in (plan for plan in plans if plan["units"]):
        boundaries = fit_rows.boundaries(plan, depth)
        refused = {at: reason for at in boundaries if (reason := protocol.refused(method, at))}
        rows += [fit_rows.row(_variant(job, plan), at, {"refused": why}) for at, why in refused.items()]
        if refused:
            reasons[plan["removed"]] = next(iter(refused.values()))
        else:
            left.append(plan)
            wanted[plan["removed"]] = boundaries
    return Asked(left, wanted, rows, reasons)


def taken(job: FitPatch, ask: Asked) -> list[Group] | None:
    """The fits that a pass for several repairs has made for the job; None without them."""
    made = fits.load(job.fits, fits.key(job.heard)) if job.fits else None
    if made is None or not made.keys() >= set(ask.boundaries):
        return None
    tensors, facts = ({at: both[0] for at, both in made.items()}, {at: both[1] for at, both in made.items()})
    return [(tensors, facts, dict.fromkeys(ask.wanted, {}))]


def fitted(job: FitPatch, model: PreTrainedModel, ask: Asked, read: Mapping[str, Calibration]) -> list[Group]:
    """The fits that the job makes itself.

    Parameters
    ----------
    model
        The unpruned base model.
    read
        What the repair is fitted on, by name, the variants' own calibration first.
    """
    method, seed, options = protocol.method(job.repair.method), job.seed, job.repair
    sources = [Source(read[name].sequences(), weight) for name, weight in job.weights]
    if not job.weights:
        weighing = load("lamina.repair.weighing")
        return [
            _group(made, _facts(model, weighed, method, made, seed), chosen)
            for weighed, made, chosen in weighing.groups(model, read, ask.plans, ask.wanted, options, seed)
        ]
    if getattr(options, "refit", False):
        chained, groups = load("lamina.repair.refit"), []
        for removed, part in ask.wanted.items():
            made, behind = chained.fit(model, sources, part, options, seed)
            facts: dict[Boundary, dict[str, Any]] = {}
            for boundary, fit in made.items():
                facts |= _facts(model, sources, method, {boundary: fit}, seed, behind[boundary])
            groups.append(_group(made, facts, {removed: {}}))
        return groups
    collected = method.collect(model, sources, ask.boundaries, options, seed)
    made = {boundary: method.fit(statistics, options) for boundary, statistics in collected}
    return [_group(made, _facts(model, sources, method, made, seed), dict.fromkeys(ask.wanted, {}))]


def written(job: FitPatch, ask: Asked, groups: Iterable[Group]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of a patch file and the rows of table `patches`."""
    named: dict[str, torch.Tensor] = {}
    rows = list(ask.refused)
    for tensors, facts, chosen in groups:
        for plan in (plan for plan in ask.plans if plan["removed"] in chosen):
            part, about = ask.wanted[plan["removed"]], chosen[plan["removed"]]
            named |= patch.tensors(plan["removed"], {boundary: tensors[boundary] for boundary in part})
            rows += [fit_rows.row(_variant(job, plan), boundary, facts[boundary] | about) for boundary in part]
    return named, rows


def _group(
    made: Mapping[Boundary, protocol.Fit],
    facts: Mapping[Boundary, dict[str, Any]],
    chosen: Mapping[int, dict[str, Any]],
) -> Group:
    return {boundary: fit.tensors for boundary, fit in made.items()}, facts, chosen


def _variant(job: FitPatch, plan: Mapping[str, Any]) -> Variant:
    return Variant(**{key: plan[key] for key in ("model", "calibration", "selector", "removed")}, repair=job.name)


def _facts(
    model: PreTrainedModel,
    sources: Sequence[Source],
    method: protocol.Repair,
    made: Mapping[Boundary, protocol.Fit],
    seed: int,
    run: taps.Run = taps.run,
) -> dict[Boundary, dict[str, Any]]:
    """Columns of table `patches` for each fit, with errors by token if the repair is a linear map of the stream."""
    maps = {boundary: method.as_patch(fit.validated) for boundary, fit in made.items()}
    linear = {boundary: linear_map for boundary, linear_map in maps.items() if linear_map is not None}
    checked = check.measure(model, sources, linear, seed, run=run) if linear else {}
    return {boundary: fit_rows.facts(method, fit, checked.get(boundary, {})) for boundary, fit in made.items()}
