"""One repair, fitted for the plans of a selector of several sizes, and the rows of table `patches`.

request = fitting.request(plans, depth, options)
groups = fitting.fit(model, request, calibrations, weights, seed)
tensors, rows = fitting.record(request, groups, name)
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from transformers import PreTrainedModel

from lamina.config.repairs import Repair
from lamina.data.calibrations import Calibration, Sample
from lamina.data.splitting import documents
from lamina.engine import sweep as engine
from lamina.engine import taps
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source, split
from lamina.errors import LaminaError
from lamina.models import replacements
from lamina.models.boundary import Boundary, Patch, check_boundaries
from lamina.models.materialise import materialise
from lamina.models.surgery import runs
from lamina.modules import load
from lamina.repair import check, patch, protocol
from lamina.repair.protocol import Tensors
from lamina.study.variant import Variant

Plan = Mapping[str, Any]
Group = tuple[
    Mapping[Boundary, Tensors], Mapping[Boundary, dict[str, Any]], Mapping[int, dict[str, Any]]
]
"""Tensors and columns of table `patches` of boundaries, and by plan size more columns of those that use them."""


@dataclass(frozen=True)
class Request:
    """What a repair is to be fitted for: its entry in the configuration, and by size the plans that it can repair."""

    options: Repair
    plans: dict[int, Plan]
    boundaries: dict[int, list[Boundary]]
    refusals: list[
        tuple[Plan, Boundary, str]
    ]  # plan and boundary of what it cannot repair, and why

    @property
    def reasons(self) -> dict[int, str]:
        """Why plans have no repair, by size."""
        return {plan["removed"]: reason for plan, _, reason in reversed(self.refusals)}


def request(plans: Iterable[Plan], depth: int, options: Repair) -> Request:
    """What a repair with these options is to be fitted for. Plans without units were refused and are left out."""
    found = Request(options, {}, {}, [])
    for plan in (plan for plan in plans if plan["units"]):
        where = runs(plan["units"], depth)
        refusals = [
            (plan, at, reason) for at in where if (reason := protocol.find_refusal(options, at))
        ]
        found.refusals.extend(refusals)
        if not refusals:
            found.plans[plan["removed"]], found.boundaries[plan["removed"]] = plan, where
    return found


def fit(
    model: PreTrainedModel,
    request: Request,
    calibrations: Mapping[str, Calibration],
    weights: Sequence[tuple[str, float]],
    seed: int,
) -> list[Group]:
    """Fit the repair for all plans of a request.

    calibrations: What the repair is fitted on, by name, the variants' own calibration first.
    weights: The weight of a token of each calibration; empty if a weight is to be chosen for each plan.
    """
    options, method = request.options, protocol.method(request.options.method)
    for removed, plan in request.plans.items():
        check_boundaries(model, plan["units"], dict.fromkeys(request.boundaries[removed]))

    def group(
        sources: Sequence[Source], made: Mapping[Boundary, protocol.Fit], facts: Any, chosen: Any
    ) -> Group:
        """What was fitted on sources, of which the first is the variants' own calibration."""
        flags = zip(next(iter(calibrations.values())).samples, split(sources, seed)[0], strict=True)
        plans, harm = [request.plans[removed] for removed in chosen], dict[int, dict[str, Any]]()
        try:
            harm = _harm(model, request, plans, [sample for sample, held in flags if held], made)
        except LaminaError as refusal:
            logging.getLogger(__name__).warning(
                "Whether the repair helps is not measured. %s", refusal
            )
        tensors = {boundary: fit.tensors for boundary, fit in made.items()}
        return (
            tensors,
            facts,
            {removed: columns | harm.get(removed, {}) for removed, columns in chosen.items()},
        )

    if not weights:
        weighing, plans = load("lamina.repair.weighing"), list(request.plans.values())
        return [
            group(weighed, made, _facts(model, weighed, method, made, seed), chosen)
            for weighed, made, chosen in weighing.groups(
                model, calibrations, plans, request.boundaries, options, seed
            )
        ]
    sources = [Source(calibrations[name].sequences(), weight) for name, weight in weights]
    if options.chain:
        chain, groups = load(options.chain), []
        for removed, part in request.boundaries.items():
            made, behind = chain.fit(model, sources, part, options, seed)
            facts: dict[Boundary, dict[str, Any]] = {}
            for boundary, each in made.items():
                facts |= _facts(model, sources, method, {boundary: each}, seed, behind[boundary])
            groups.append(group(sources, made, facts, {removed: {}}))
        return groups
    every = sorted({boundary for part in request.boundaries.values() for boundary in part})
    collected = method.collect(model, sources, every, options, seed)
    made = {boundary: method.fit(statistics, options) for boundary, statistics in collected}
    return [
        group(
            sources,
            made,
            _facts(model, sources, method, made, seed),
            dict.fromkeys(request.plans, {}),
        )
    ]


def record(
    request: Request, groups: Iterable[Group], name: str
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of a patch file and the rows of table `patches`, of the repair with this name."""
    tensors: dict[str, torch.Tensor] = {}
    rows = [_row(plan, name, at, {"refused": reason}) for plan, at, reason in request.refusals]
    for fits, facts, chosen in groups:
        for removed, plan in request.plans.items():
            if removed in chosen:
                part, more = request.boundaries[removed], chosen[removed]
                tensors |= patch.tensors(removed, {boundary: fits[boundary] for boundary in part})
                rows += [_row(plan, name, boundary, facts[boundary] | more) for boundary in part]
    return tensors, rows


def _harm(
    model: PreTrainedModel,
    request: Request,
    plans: list[Plan],
    samples: list[Sample],
    made: Mapping[Boundary, protocol.Fit],
) -> dict[int, dict[str, Any]]:
    """Columns of table `patches` by size, of plans that no portfolio chose, on samples that no patch has seen."""
    plans = [plan for plan in plans if not plan.get("choice")]
    parts = {at: protocol.Fitted(request.options.method, fit.validated) for at, fit in made.items()}
    maps = {at: part.as_patch() for at, part in parts.items()}
    candidates, alone = dict[Any, Candidate](), dict[Any, np.ndarray]()
    for plan in plans:
        removed, units = plan["removed"], frozenset(plan["units"])
        candidates[removed, False], here = Candidate(units), request.boundaries[removed]
        if linear := {at: patch for at in here if (patch := maps[at])}:
            candidates[removed, True] = Candidate(units, linear)
        else:
            variant = materialise(model, plan, {at: parts[at] for at in here})
            alone |= losses(variant, samples, {(removed, True): Candidate()})
    found = losses(model, samples, candidates, plans) | alone if plans else {}
    (numbers,) = documents([[sample.sequence() for sample in samples]])
    return {
        size: compared(found[size, False], found[size, True], numbers)
        for size, mended in found
        if mended
    }


def losses(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    candidates: Mapping[Any, Candidate],
    plans: Iterable[Plan] = (),
) -> dict[Any, np.ndarray]:
    """Negative log-likelihood and number of the scored tokens of each sample, by candidate (samples, 2).

    plans: those of the candidates, which say what takes the place of layers.
    """
    records = {
        name: record for plan in plans for name, record in plan.get("replacements", {}).items()
    }
    units = {unit for candidate in candidates.values() for unit in candidate.removed}
    given = replacements.layers(model, units, records)
    with engine.opened(model, samples, outputs=False, replacements=given) as session:
        session.measure(range(len(samples)), candidates)
    read = {
        name: [session.scores.sample(name, number) for number in range(len(samples))]
        for name in candidates
    }
    return {
        name: np.array([[row["nll"], row["n_tokens"]] for row in rows])
        for name, rows in read.items()
    }


def compared(bare: np.ndarray, repaired: np.ndarray, numbers: Sequence[int]) -> dict[str, Any]:
    """Losses per token, from what `losses` gives, and whether the second is surely higher.

    numbers: the number of each sample's document, from 0.
    """
    sums = np.zeros((1 + max(numbers), 2))
    np.add.at(sums, list(numbers), np.stack([repaired[:, 0] - bare[:, 0], bare[:, 1]], axis=1))
    (difference, tokens), count = sums.sum(axis=0), len(sums)
    residuals = sums @ [1, -difference / tokens]
    error = np.sqrt((residuals**2).sum() * count / (count - 1)) / tokens if count > 1 else np.inf
    return {
        "loss_bare": float(bare[:, 0].sum() / tokens),
        "loss_repaired": float(repaired[:, 0].sum() / tokens),
        "loss_stderr": float(error) if np.isfinite(error) else None,
        "n_loss": count,
        "hurts": bool(difference / tokens > student.ppf(0.975, max(1, count - 1)) * error),
    }


def _row(plan: Plan, repair: str, boundary: Boundary, facts: Mapping[str, Any]) -> dict[str, Any]:
    variant = Variant(
        **{key: plan[key] for key in ("model", "calibration", "selector", "removed")}, repair=repair
    )
    start, end = boundary
    return {**variant.row(), "boundary": f"{start}-{end}", "start": start, "end": end, **facts}


def _facts(
    model: PreTrainedModel,
    sources: Sequence[Source],
    method: protocol.RepairMethod,
    made: Mapping[Boundary, protocol.Fit],
    seed: int,
    run: taps.Run = taps.run,
) -> dict[Boundary, dict[str, Any]]:
    """Columns of table `patches` for each fit, with errors by token if the repair is a linear map of the stream."""
    maps = {boundary: method.as_patch(fit.validated) for boundary, fit in made.items()}
    linear = {
        boundary: linear_map for boundary, linear_map in maps.items() if linear_map is not None
    }
    checked = check.measure(model, sources, linear, seed, run=run) if linear else {}
    return {
        boundary: {**fit.facts, **shape(method.as_patch(fit.tensors)), **checked.get(boundary, {})}
        for boundary, fit in made.items()
    }


def shape(patch: Patch | None) -> dict[str, Any]:
    """The shape of a repair that is a linear map M of the stream; nothing for other repairs."""
    if patch is None:
        return {}
    values = torch.linalg.svdvals(patch.matrix.float())
    return {
        "antisymmetric_share": antisymmetric_share(patch.matrix),
        "singular_values": values.tolist(),
        "effective_rank": effective_rank(values),
    }


def antisymmetric_share(operator: torch.Tensor) -> float:
    """Share of ‖M‖² in (M - Mᵀ)/2, which no symmetric patch can reach; 0 for a zero operator (C, C)."""
    total = float(operator.double().square().sum())
    skew = (operator - operator.T).double() / 2
    return float(skew.square().sum()) / total if total > 0 else 0.0


def effective_rank(values: torch.Tensor) -> float:
    """exp of the entropy of the squares of singular values (C,), as shares of their sum; 0 for a zero operator.

    C equal directions have rank C, and directions with very small values do not count.
    """
    squares = values.double().square()
    shares = squares / squares.sum().clamp_min(torch.finfo(squares.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp()) if squares.sum() > 0 else 0.0
