"""One recovery fitted for the plans of a selector, of several sizes, and what table `patches` says of the fits."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from lamina.data.calibrations import Calibration
from lamina.jobs.fit_patch import FitPatch
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.modules import load
from lamina.recovery import check, fit_rows, patch, protocol
from lamina.streams import taps
from lamina.streams.sources import Source
from lamina.variant import Variant


def fitted(
    job: FitPatch, model: PreTrainedModel, plans: Sequence[Mapping[str, Any]], read: Mapping[str, Calibration]
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, str]]:
    """The tensors of all boundaries, the rows of table `patches`, and why plans of some sizes have no repair.

    Parameters
    ----------
    model
        The unpruned base model.
    plans
        Those that remove something.
    read
        What the recovery is fitted on, by name, the variants' own calibration first.
    """
    tensors: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    reasons: dict[int, str] = {}
    method, seed, options = protocol.method(job.recovery.method), job.seed, job.recovery
    wanted = {plan["removed"]: fit_rows.boundaries(plan, len(layers_of(model))) for plan in plans}
    left = list(plans)
    for plan in plans:
        refused = {at: reason for at in wanted[plan["removed"]] if (reason := protocol.refused(method, at))}
        rows += [fit_rows.row(_variant(job, plan), at, {"refused": why}) for at, why in refused.items()]
        if refused:
            left.remove(plan)
            del wanted[plan["removed"]]
            reasons[plan["removed"]] = next(iter(refused.values()))
    sources = [Source(read[name].sequences(), weight) for name, weight in job.weights]
    groups: list[tuple[Any, dict[Boundary, dict[str, Any]], Mapping[int, dict[str, Any]]]]
    if not left:
        groups = []
    elif not job.weights:
        weighing = load("lamina.recovery.weighing")
        groups = [
            (fits, _facts(model, weighed, method, fits, seed), chosen)
            for weighed, fits, chosen in weighing.groups(model, read, left, wanted, options, seed)
        ]
    elif getattr(options, "refit", False):
        chained, groups = load("lamina.recovery.refit"), []
        for removed, part in wanted.items():
            fits, behind = chained.fit(model, sources, part, options, seed)
            facts: dict[Boundary, dict[str, Any]] = {}
            for boundary, fit in fits.items():
                facts |= _facts(model, sources, method, {boundary: fit}, seed, behind[boundary])
            groups.append((fits, facts, {removed: {}}))
    else:
        every = sorted({boundary for part in wanted.values() for boundary in part})
        collected = method.collect(model, sources, every, options, seed)
        fits = {boundary: method.fit(statistics, options) for boundary, statistics in collected}
        groups = [(fits, _facts(model, sources, method, fits, seed), dict.fromkeys(wanted, {}))]
    for fits, facts, chosen in groups:
        for plan in (plan for plan in left if plan["removed"] in chosen):
            part = wanted[plan["removed"]]
            tensors |= patch.tensors(plan["removed"], {boundary: fits[boundary].tensors for boundary in part})
            about = chosen[plan["removed"]]
            rows += [fit_rows.row(_variant(job, plan), boundary, facts[boundary] | about) for boundary in part]
    return tensors, rows, reasons


def _variant(job: FitPatch, plan: Mapping[str, Any]) -> Variant:
    return Variant(**{key: plan[key] for key in ("model", "calibration", "selector", "removed")}, recovery=job.name)


def _facts(
    model: PreTrainedModel,
    sources: Sequence[Source],
    method: protocol.Repair,
    fits: Mapping[Boundary, protocol.Fit],
    seed: int,
    run: taps.Run = taps.run,
) -> dict[Boundary, dict[str, Any]]:
    """What table `patches` says of each fit; errors token by token where it is a linear map of the stream."""
    maps = {boundary: method.as_patch(fit.validated) for boundary, fit in fits.items()}
    linear = {boundary: linear_map for boundary, linear_map in maps.items() if linear_map is not None}
    checked = check.measure(model, sources, linear, seed, run=run) if linear else {}
    return {
        boundary: {**fit.facts, **fit_rows.shape(method.as_patch(fit.tensors)), **checked.get(boundary, {})}
        for boundary, fit in fits.items()
    }
