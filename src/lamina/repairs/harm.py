"""Tests whether a repair does harm: losses on held-out documents, without and with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np
from scipy import stats
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.data.splitting import index_documents
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models import replacements
from lamina.models.boundary import Boundary, Patch
from lamina.models.repaired import cut_and_repair
from lamina.repairs.protocol import Fit, Fitted

BARE = "bare"
REPAIRED = "repaired"

CandidateName = TypeVar("CandidateName")


class LossColumns(TypedDict):
    """Columns of table `patches`: losses in nats per token, on held-out documents.

    No patch was fitted on them; the ridge and the epoch of a training were chosen on them."""

    loss_bare: float
    loss_repaired: float
    loss_stderr: float | None
    """Standard error of the difference; None for a single document."""
    n_loss: int
    """Number of documents."""
    hurts: bool
    """Whether the repair raises the loss significantly, by a two-sided 95 % interval."""


def measure_harm(
    model: PreTrainedModel,
    method: str,
    plans: Iterable[Mapping[str, Any]],
    boundaries: Mapping[int, Sequence[Boundary]],
    samples: Sequence[Sample],
    fits: Mapping[Boundary, Fit],
) -> dict[int, LossColumns]:
    """Compare each plan's losses with and without its repair, by plan size.

    Plans that a portfolio chose are left out: it has compared these losses already.

    boundaries: The runs of each plan, by its size.
    samples: Held-out samples, on which the validated fits were not fitted.
    """
    plans = [plan for plan in plans if not plan.get("choice")]
    if not plans:
        return {}
    repairs = {boundary: Fitted(method, fit.validated) for boundary, fit in fits.items()}
    # One object per fit: plans with the same run share it, so that their streams stay one.
    linear_maps = {boundary: repair.as_patch() for boundary, repair in repairs.items()}
    candidates: dict[tuple[int, str], Candidate] = {}
    losses_by_candidate: dict[tuple[int, str], np.ndarray] = {}
    for plan in plans:
        size = plan["removed"]
        units = frozenset(plan["units"])
        candidates[size, BARE] = Candidate(units)
        plan_patches: dict[Boundary, Patch] = {}
        for boundary in boundaries[size]:
            linear_map = linear_maps[boundary]
            if linear_map is not None:
                plan_patches[boundary] = linear_map
        if plan_patches:
            candidates[size, REPAIRED] = Candidate(units, plan_patches)
        else:
            # A repair that is not a linear map of the stream needs a model that is actually cut.
            plan_repairs = {boundary: repairs[boundary] for boundary in boundaries[size]}
            variant = cut_and_repair(model, plan, plan_repairs)
            losses_by_candidate |= measure_losses(variant, samples, {(size, REPAIRED): Candidate()})
    losses_by_candidate |= measure_losses(model, samples, candidates, plans)

    (document_of_sample,) = index_documents([[sample.sequence() for sample in samples]])
    columns_by_size: dict[int, LossColumns] = {}
    for plan in plans:
        size = plan["removed"]
        columns_by_size[size] = compare_losses(
            losses_by_candidate[size, BARE], losses_by_candidate[size, REPAIRED], document_of_sample
        )
    return columns_by_size


def measure_losses(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    candidates: Mapping[CandidateName, Candidate],
    plans: Iterable[Mapping[str, Any]] = (),
) -> dict[CandidateName, np.ndarray]:
    """Measure candidates on samples in one pass.

    Returns for each candidate the negative log-likelihood of every sample's scored tokens, and
    their number, (samples, 2).

    plans: The plans of the candidates, which name the donors of layers.
    """
    donor_records: dict[str, Mapping[str, Any]] = {}
    for plan in plans:
        donor_records |= plan.get("replacements", {})
    removed_units: set[str] = set()
    for candidate in candidates.values():
        removed_units |= candidate.edits
    donor_layers = replacements.replacement_layers(model, removed_units, donor_records)

    with sweep.open_session(model, samples, outputs=False, replacements=donor_layers) as session:
        session.measure(range(len(samples)), candidates)
    losses_by_name: dict[CandidateName, np.ndarray] = {}
    for name in candidates:
        score_rows = [session.scores.sample(name, index) for index in range(len(samples))]
        losses_by_name[name] = np.array([[row["nll"], row["n_tokens"]] for row in score_rows])
    return losses_by_name


def compare_losses(
    bare_losses: np.ndarray, repaired_losses: np.ndarray, document_of_sample: Sequence[int]
) -> LossColumns:
    """Compare the losses of a pruned model without and with a repair, from `measure_losses`.

    The difference per token is a ratio of sums over documents; its standard error is that of the
    residuals `difference - ratio · n_tokens` of the documents.

    document_of_sample: The index of each sample's document, from 0.
    """
    n_documents = 1 + max(document_of_sample)
    differences = repaired_losses[:, 0] - bare_losses[:, 0]
    sums_by_document = np.zeros((n_documents, 2))
    differences_and_tokens = np.stack([differences, bare_losses[:, 1]], axis=1)
    np.add.at(sums_by_document, list(document_of_sample), differences_and_tokens)

    total_difference, n_tokens = sums_by_document.sum(axis=0)
    document_residuals = sums_by_document @ [1, -total_difference / n_tokens]
    stderr = np.inf
    if n_documents > 1:
        corrected_square = (document_residuals**2).sum() * n_documents / (n_documents - 1)
        stderr = np.sqrt(corrected_square) / n_tokens
    threshold = stats.t.ppf(0.975, max(1, n_documents - 1)) * stderr
    return {
        "loss_bare": float(bare_losses[:, 0].sum() / n_tokens),
        "loss_repaired": float(repaired_losses[:, 0].sum() / n_tokens),
        "loss_stderr": float(stderr) if np.isfinite(stderr) else None,
        "n_loss": n_documents,
        "hurts": bool(total_difference / n_tokens > threshold),
    }
