"""Ghost: a ridge regression from the stream before a removed run to the run's change of the stream.

`M = (XᵀX + λI)⁻¹ Xᵀ(Y - X)` with X = h_start, Y = h_end of the unpruned model, then `h <- h (I + M)` at the boundary
(arXiv 2605.15491). The paper's λ is absolute. Here it is relative to trace(XᵀX)/C, and by default it is chosen on
samples that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.config.entry import option
from lamina.config.explain import wrong
from lamina.config.repairs import AUTO, Repair, ridge_option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.engine.moments import Moments, Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch
    from lamina.repair.protocol import Fit, Tensors


class Ghost(Repair):
    """One linear map of the residual stream where a run of layers went, by ridge regression."""

    method: Literal["ghost"] = "ghost"
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    bias: bool = option("Whether the operator has a bias (is affine).", False)
    rank: int | None = option(
        "Rank of the operator; `null` leaves it full. A rank r below C / 2 is stored and applied as two factors, which "
        "have 2 C r parameters where a full operator has C².",
        None,
        ge=1,
    )
    refit: bool = option(
        "Whether each run after the first is fitted on the stream of the model as pruned and patched before it, and "
        "not on the unpruned one's.",
        False,
    )

    @property
    def chain(self) -> str | None:
        return "lamina.repair.refit" if self.refit else None

    def layer_passes(
        self, depth: int, sizes: Sequence[int], training: int, held_out: float
    ) -> float:
        if not self.refit:
            return super().layer_passes(depth, sizes, training, held_out)
        # For each run two passes and one for the absolute errors; after the first run also passes of a cut model.
        return float(depth * sum(3 + 6 * (size - 1) for size in sizes))

    @model_validator(mode="after")
    def _check_refit(self) -> Self:
        if self.refit and AUTO in self.data.values():
            raise wrong(
                f"goes through a plan run by run, and '{AUTO}' fits all at once. Write a weight.",
                "refit",
            )
        return self


# A few massive activations dominate the trace, so the useful values lie far below 1.
GRID: tuple[float, ...] = (0.0, *(10.0**power for power in range(-12, 1)))


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Ghost,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Moments]]]:
    """Moments of the unpruned stream, separate for fit and held-out samples."""
    from lamina.engine import moments

    return moments.collect(model, sources, boundaries, seed)


def fit(statistics: Statistics[Moments], options: Ghost) -> Fit:
    """Fit one boundary.

    λ is chosen on the held-out samples, for operators fitted on the others. The patch is then fitted on all samples
    with this λ. The reported errors are those of the operator that has not seen the held-out samples.
    """
    import torch

    from lamina.repair.protocol import Fit

    grid = GRID if options.ridge == "validated" else (float(options.ridge),)
    seen, unseen = statistics.fit, statistics.heldout
    regression, best = Regression(seen, options), 0
    if len(grid) > 1:
        left = regression.errors(unseen, grid)
        best = left.index(min(left))
    chosen = grid[best]
    validated = regression.solve(chosen)
    del regression
    final, channels = Regression(statistics.whole(), options).solve(chosen), len(seen.xx)
    return Fit(
        tensors=final.to(seen.xx.device, torch.float32).tensors,
        validated=validated.to(seen.xx.device, torch.float32).tensors,
        facts={
            "ridge": chosen,
            "ridge_at_edge": len(grid) > 1 and best in (0, len(grid) - 1),
            "rank": min(options.rank or channels, channels),
            **errors(seen, unseen, validated.matrix, validated.bias),
            "parameters": sum(tensor.numel() for tensor in final.tensors.values()),
            **statistics.counts(),
        },
    )


def errors(
    seen: Moments, unseen: Moments, operator: torch.Tensor, bias: torch.Tensor | None = None
) -> dict[str, float]:
    """The relative errors of table `patches` for an operator (C, C) and a bias (C,)."""
    import torch

    nothing = torch.zeros_like(operator)
    return {
        "fit_error_before": _relative(seen.residual_norm(nothing), seen),
        "fit_error": _relative(seen.residual_norm(operator, bias), seen),
        "heldout_error_before": _relative(unseen.residual_norm(nothing), unseen),
        "heldout_error": _relative(unseen.residual_norm(operator, bias), unseen),
    }


def as_patch(tensors: Tensors) -> Patch:
    from lamina.models.boundary import Patch

    return Patch(**tensors)


class Regression:
    """One eigendecomposition XᵀX = V diag(v) Vᵀ; it gives the operator V diag(1 / (v + λ)) P of any λ.

    P = VᵀXᵀD; with a bias, X and D are centred on their means.
    """

    def __init__(self, sums: Moments, options: Ghost) -> None:
        import torch

        self.options = options
        self.mean_x, self.mean_d = sums.x / sums.weight, sums.d / sums.weight
        centred = sums.centred(self.mean_x, self.mean_d) if options.bias else sums
        values, self.vectors = torch.linalg.eigh(centred.xx)
        self.values = values.clamp_min(0)
        self.cross = centred.xd
        self.projected = self.vectors.T @ centred.xd

    def solve(self, ridge: float) -> Patch:
        """The patch in float64 for λ = `ridge` times the mean eigenvalue."""
        operator = self.vectors @ (self._inverse(ridge)[:, None] * self.projected)
        made = _limited(operator, self.cross, self.options.rank or len(operator))
        return (
            replace(made, bias=self.mean_d - self.mean_x @ made.matrix)
            if self.options.bias
            else made
        )

    def errors(self, unseen: Moments, grid: Sequence[float]) -> list[float]:
        """‖D - X M - 1 b‖ of every λ of the grid, on samples that were not fitted.

        With s = 1 / (v + λ), ‖X M‖² is sᵀ K s where K = (VᵀGV) ∘ (PPᵀ) and G = XᵀX of those samples. Once K is known,
        an error costs C² and not C³. A limited rank has no such form.
        """
        if self.options.rank is not None:
            made = [self.solve(ridge) for ridge in grid]
            return [unseen.residual_norm(patch.matrix, patch.bias) for patch in made]
        if self.options.bias:
            unseen = unseen.centred(self.mean_x, self.mean_d)
        kernel = self.vectors.T @ unseen.xx @ self.vectors
        kernel *= self.projected @ self.projected.T
        linear = (self.projected * (self.vectors.T @ unseen.xd)).sum(1)
        inverses = [self._inverse(ridge) for ridge in grid]
        squares = [
            unseen.dd - 2 * inverse @ linear + inverse @ kernel @ inverse for inverse in inverses
        ]
        return [float(square.clamp_min(0).sqrt()) for square in squares]

    def _inverse(self, ridge: float) -> torch.Tensor:
        """1 / (v + λ), (C,)."""
        import torch

        inverse = 1 / (self.values + ridge * self.values.mean())
        if ridge == 0:
            # Below this, an eigenvalue is rounding: with no ridge the solution is the one of minimal norm.
            noise = self.values[-1] * len(self.values) * torch.finfo(self.values.dtype).eps
            inverse = torch.where(self.values > noise, inverse, 0.0)
        return inverse


def _limited(operator: torch.Tensor, cross: torch.Tensor, rank: int) -> Patch:
    """Reduced-rank regression: keep the `rank` strongest directions of the prediction [X; √λ I] M, as two factors.

    Their Gram matrix is Mᵀ(XᵀX + λI)M = Mᵀ Xᵀ(Y - X), so neither X nor λ is needed here. Factors that have no fewer
    numbers than their product are multiplied.
    """
    import torch

    from lamina.models.boundary import Patch

    if rank >= len(operator):
        return Patch(operator)
    prediction = operator.T @ cross
    directions = torch.linalg.eigh((prediction + prediction.T) / 2).eigenvectors[:, -rank:]
    made = Patch(down=operator @ directions, up=directions.T.contiguous())
    return made if 2 * rank < len(operator) else Patch(made.matrix)


def _relative(error: float, sums: Moments) -> float:
    norm = sums.output_norm()
    return error / norm if norm > 0 else 0.0
