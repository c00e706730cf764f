"""Ghost: a ridge regression from the stream before a removed run to what the run added to it.

`M = (XᵀX + λI)⁻¹ Xᵀ(Y - X)` with X = h_start, Y = h_end of the unpruned model, then `h <- h (I + M)` at the boundary
(arXiv 2605.15491). The paper's λ is absolute; here it is relative to trace(XᵀX)/C, and by default picked on samples
that the fit did not see.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.models.variant import Patch
from lamina.recovery.patch import Fit
from lamina.streams.moments import Moments, Statistics

# A few massive activations dominate the trace, so the useful values lie far below 1.
GRID: tuple[float, ...] = (0.0, *(10.0**power for power in range(-12, 1)))
OPTIONS = ("method", "ridge", "bias", "rank")


@dataclass(frozen=True)
class _Options:
    grid: tuple[float, ...]
    bias: bool
    rank: int | None


def fit(statistics: Statistics, options: Mapping[str, Any]) -> Fit:
    """Fit one boundary.

    Parameters
    ----------
    statistics : moments of the boundary, fit and held-out samples apart.
    options : `ridge`, "validated" (default) or a number relative to trace(XᵀX)/C; `bias`, whether an affine term is
        fitted too; `rank`, keep only that many directions of the prediction (reduced-rank regression).

    Raises
    ------
    LaminaError
        If an option is unknown or out of range.

    λ is picked on the held-out samples from operators fitted on the others; the patch is then fitted once more on
    all samples with that λ, while the errors reported stay those of the operator that has not seen the held-out ones.
    """
    wanted = _read(options)
    seen, unseen = statistics.fit, statistics.heldout
    best, error = 0, math.inf
    for number, candidate in enumerate(_solve(seen, wanted)):
        candidate_error = unseen.residual_norm(*candidate)
        if candidate_error < error or number == 0:
            best, error, (operator, bias) = number, candidate_error, candidate
    chosen = wanted.grid[best]
    ((final_operator, final_bias),) = _solve(seen.plus(unseen), replace(wanted, grid=(chosen,)))
    channels = len(operator)
    return Fit(
        patch=_patch(final_operator, final_bias),
        validated=_patch(operator, bias),
        ridge=chosen,
        ridge_at_edge=len(wanted.grid) > 1 and best in (0, len(wanted.grid) - 1),
        rank=min(wanted.rank or channels, channels),
        fit_error_before=_relative(seen.residual_norm(torch.zeros_like(operator)), seen),
        fit_error=_relative(seen.residual_norm(operator, bias), seen),
        heldout_error_before=_relative(unseen.residual_norm(torch.zeros_like(operator)), unseen),
        heldout_error=_relative(error, unseen),
    )


def _read(options: Mapping[str, Any]) -> _Options:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise LaminaError(f"ghost has no option '{unknown[0]}'. It has: {', '.join(OPTIONS[1:])}.")
    ridge = options.get("ridge", "validated")
    if ridge == "validated":
        grid = GRID
    elif isinstance(ridge, (int, float)) and not isinstance(ridge, bool) and ridge >= 0:
        grid = (float(ridge),)
    else:
        raise LaminaError(f"ridge: {ridge!r} is not a ridge. Write `validated` or a number of 0 or more, such as 1e-6.")
    rank = options.get("rank")
    if rank is not None and (not isinstance(rank, int) or rank < 1):
        raise LaminaError(f"rank: {rank!r} is not a rank. Write an integer of 1 or more, or leave it out.")
    return _Options(grid, bool(options.get("bias", False)), rank)


def _patch(operator: torch.Tensor, bias: torch.Tensor | None) -> Patch:
    return Patch(operator.float(), None if bias is None else bias.float())


def _solve(moments: Moments, wanted: _Options) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Operator (C, C) and bias (C,) in float64 for every λ, from one eigendecomposition of XᵀX."""
    gram, cross = moments.xx, moments.xd
    mean_x, mean_d = moments.x / moments.tokens, moments.d / moments.tokens
    if wanted.bias:
        gram = gram - moments.tokens * torch.outer(mean_x, mean_x)
        cross = cross - moments.tokens * torch.outer(mean_x, mean_d)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    # Below this, an eigenvalue is rounding: with no ridge the solution is the one of minimal norm.
    noise = values[-1] * len(values) * torch.finfo(values.dtype).eps
    projected = vectors.T @ cross
    scale = values.mean()
    for ridge in wanted.grid:
        inverse = 1 / (values + ridge * scale)
        if ridge == 0:
            inverse = torch.where(values > noise, inverse, 0.0)
        operator = vectors @ (inverse[:, None] * projected)
        if wanted.rank is not None:
            operator = _reduce(operator, cross, wanted.rank)
        yield operator, mean_d - mean_x @ operator if wanted.bias else None


def _reduce(operator: torch.Tensor, cross: torch.Tensor, rank: int) -> torch.Tensor:
    """Reduced-rank regression: keep the `rank` strongest directions of the prediction [X; √λ I] M.

    Their Gram matrix is Mᵀ(XᵀX + λI)M = Mᵀ Xᵀ(Y - X), so neither X nor λ is needed here.
    """
    if rank >= len(operator):
        return operator
    prediction = operator.T @ cross
    directions = torch.linalg.eigh((prediction + prediction.T) / 2).eigenvectors[:, -rank:]
    return operator @ directions @ directions.T


def _relative(error: float, moments: Moments) -> float:
    norm = moments.output_norm()
    return error / norm if norm > 0 else 0.0
