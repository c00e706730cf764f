"""Ghost: a ridge regression from the stream before a removed run to what the run added to it.

`M = (XᵀX + λI)⁻¹ Xᵀ(Y - X)` with X = h_start, Y = h_end of the unpruned model, then `h <- h (I + M)` at the boundary
(arXiv 2605.15491). The paper's λ is absolute; here it is relative to trace(XᵀX)/C, and by default picked on samples
that the fit did not see.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from lamina.config.recoveries import Ghost
from lamina.models.variant import Boundary, Patch, Place
from lamina.recovery.protocol import Fit, Source, Tensors
from lamina.streams import moments
from lamina.streams.moments import Moments, Statistics

# A few massive activations dominate the trace, so the useful values lie far below 1.
GRID: tuple[float, ...] = (0.0, *(10.0**power for power in range(-12, 1)))


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Ghost,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics]]:
    """Moments of the unpruned stream, fit and held-out samples apart."""
    return moments.collect(model, sources, boundaries, seed)


def fit(statistics: Statistics, options: Ghost) -> Fit:
    """Fit one boundary.

    λ is picked on the held-out samples from operators fitted on the others; the patch is then fitted once more on
    all samples with that λ, while the errors reported stay those of the operator that has not seen the held-out ones.
    """
    grid = GRID if options.ridge == "validated" else (float(options.ridge),)
    seen, unseen = statistics.fit, statistics.heldout
    best, error = 0, math.inf
    for number, candidate in enumerate(_solve(seen, grid, options)):
        candidate_error = unseen.residual_norm(*candidate)
        if candidate_error < error or number == 0:
            best, error, (operator, bias) = number, candidate_error, candidate
    chosen = grid[best]
    ((final_operator, final_bias),) = _solve(seen.plus(unseen), (chosen,), options)
    channels, final, nothing = len(operator), _tensors(final_operator, final_bias), torch.zeros_like(operator)
    return Fit(
        tensors=final,
        validated=_tensors(operator, bias),
        facts={
            "ridge": chosen,
            "ridge_at_edge": len(grid) > 1 and best in (0, len(grid) - 1),
            "rank": min(options.rank or channels, channels),
            "fit_error_before": _relative(seen.residual_norm(nothing), seen),
            "fit_error": _relative(seen.residual_norm(operator, bias), seen),
            "heldout_error_before": _relative(unseen.residual_norm(nothing), unseen),
            "heldout_error": _relative(error, unseen),
            "parameters": sum(tensor.numel() for tensor in final.values()),
            **statistics.counts(),
        },
    )


def apply(variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
    """Put the operator before what follows the boundary."""
    as_patch(tensors).apply(variant, place)


def as_patch(tensors: Tensors) -> Patch:
    """The operator itself."""
    return Patch(tensors["operator"], tensors.get("bias"))


def _tensors(operator: torch.Tensor, bias: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {"operator": operator.float()} | ({} if bias is None else {"bias": bias.float()})


def _solve(sums: Moments, grid: Sequence[float], options: Ghost) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Operator (C, C) and bias (C,) in float64 for every λ, from one eigendecomposition of XᵀX."""
    gram, cross = sums.xx, sums.xd
    mean_x, mean_d = sums.x / sums.weight, sums.d / sums.weight
    if options.bias:
        gram = gram - sums.weight * torch.outer(mean_x, mean_x)
        cross = cross - sums.weight * torch.outer(mean_x, mean_d)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    # Below this, an eigenvalue is rounding: with no ridge the solution is the one of minimal norm.
    noise = values[-1] * len(values) * torch.finfo(values.dtype).eps
    projected = vectors.T @ cross
    scale = values.mean()
    for ridge in grid:
        inverse = 1 / (values + ridge * scale)
        if ridge == 0:
            inverse = torch.where(values > noise, inverse, 0.0)
        operator = vectors @ (inverse[:, None] * projected)
        if options.rank is not None:
            operator = _reduce(operator, cross, options.rank)
        yield operator, mean_d - mean_x @ operator if options.bias else None


def _reduce(operator: torch.Tensor, cross: torch.Tensor, rank: int) -> torch.Tensor:
    """Reduced-rank regression: keep the `rank` strongest directions of the prediction [X; √λ I] M.

    Their Gram matrix is Mᵀ(XᵀX + λI)M = Mᵀ Xᵀ(Y - X), so neither X nor λ is needed here.
    """
    if rank >= len(operator):
        return operator
    prediction = operator.T @ cross
    directions = torch.linalg.eigh((prediction + prediction.T) / 2).eigenvectors[:, -rank:]
    return operator @ directions @ directions.T


def _relative(error: float, sums: Moments) -> float:
    norm = sums.output_norm()
    return error / norm if norm > 0 else 0.0
