"""Ghost: a ridge regression from the stream before a removed run to the run's change of the stream.

    M = (XᵀX + λI)⁻¹ Xᵀ(Y - X),    then h ← h (I + M) at the boundary

with X = h_start and Y = h_end of the unpruned model, (tokens, C) each (arXiv 2605.15491). The
paper's λ is absolute. Here it is relative to trace(XᵀX) / C, and by default it is chosen on samples
that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.options.entry import option
from lamina.options.explain import invalid
from lamina.options.repairs import AUTO, Repair, ridge_option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.engine.moments import Moments, Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch
    from lamina.repairs.protocol import Fit, Tensors


class Ghost(Repair):
    """One linear map of the residual stream at a removed run of layers, by ridge regression."""

    method: Literal["ghost"] = "ghost"
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    bias: bool = option("Whether the map has a bias (is affine).", False)
    rank: int | None = option(
        "Rank of the map; `null` means full rank. For hidden size C, a rank r below C / 2 is "
        "stored and applied as two factors, with 2 C r parameters instead of C².",
        None,
        ge=1,
    )
    refit: bool = option(
        "Whether each run after the first is fitted on the residual stream of the model with all "
        "earlier runs removed and patched, instead of the unpruned model's.",
        False,
    )

    @property
    def chain(self) -> str | None:
        """The module that fits run after run; None if one pass serves all runs."""
        return "lamina.repairs.refit" if self.refit else None

    def layer_passes(
        self, depth: int, runs: Sequence[int], training: int, held_out: float
    ) -> float:
        """How many layers each token of a fit goes through, see `Repair.layer_passes`."""
        if not self.refit:
            return super().layer_passes(depth, runs, training, held_out)
        # Each run takes two passes for the moments and one for the absolute errors. After the first
        # run each of them also runs a model that is cut and patched.
        return float(depth * sum(3 + 6 * (n_runs - 1) for n_runs in runs))

    @model_validator(mode="after")
    def _check_refit(self) -> Self:
        if self.refit and AUTO in self.data.values():
            raise invalid(
                f"fits one run after the other, but '{AUTO}' fits all at once. Write a weight.",
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

    return moments.collect_moments(model, sources, boundaries, seed)


def fit(statistics: Statistics[Moments], options: Ghost) -> Fit:
    """Fit one boundary.

    λ is chosen on the held-out samples, with operators fitted on the others. The patch is then
    fitted on all samples with this λ. The reported errors are those of the operator that has not
    seen the held-out samples.
    """
    import torch

    from lamina.repairs.protocol import Fit

    ridge_grid = GRID if options.ridge == "validated" else (float(options.ridge),)
    regression = Regression(statistics.fit, options)
    best_index = 0
    if len(ridge_grid) > 1:
        heldout_errors = regression.residual_norms(statistics.heldout, ridge_grid)
        best_index = heldout_errors.index(min(heldout_errors))
    ridge = ridge_grid[best_index]
    validated_patch = regression.solve(ridge)
    # Its matrices are freed before those of the second decomposition are allocated.
    del regression
    final_patch = Regression(statistics.whole(), options).solve(ridge)

    channels = len(statistics.fit.xx)
    device = statistics.fit.xx.device
    return Fit(
        tensors=final_patch.to(device, torch.float32).tensors,
        validated=validated_patch.to(device, torch.float32).tensors,
        facts={
            "ridge": ridge,
            "ridge_at_edge": len(ridge_grid) > 1 and best_index in (0, len(ridge_grid) - 1),
            "rank": min(options.rank or channels, channels),
            **relative_errors(statistics, validated_patch.matrix, validated_patch.bias),
            "parameters": sum(tensor.numel() for tensor in final_patch.tensors.values()),
            **statistics.counts(),
        },
    )


def relative_errors(
    statistics: Statistics[Moments], operator: torch.Tensor, bias: torch.Tensor | None = None
) -> dict[str, float]:
    """The errors ‖Y - Ŷ‖ / ‖Y‖ of table `patches`, for an operator (C, C) and a bias (C,)."""
    import torch

    no_operator = torch.zeros_like(operator)
    error_columns: dict[str, float] = {}
    for column_name, moments in (
        ("fit_error", statistics.fit),
        ("heldout_error", statistics.heldout),
    ):
        error_columns[f"{column_name}_before"] = _relative(
            moments.residual_norm(no_operator), moments
        )
        error_columns[column_name] = _relative(moments.residual_norm(operator, bias), moments)
    return error_columns


def _relative(residual_norm: float, moments: Moments) -> float:
    output_norm = moments.output_norm()
    return residual_norm / output_norm if output_norm > 0 else 0.0


def as_patch(tensors: Tensors) -> Patch:
    """The patch of the fitted tensors, which already have its form."""
    from lamina.models.boundary import Patch

    return Patch(**tensors)


class Regression:
    """Ridge regression of D = Y - X on X, solved for any λ by one eigendecomposition.

    With XᵀX = V diag(v) Vᵀ and P = VᵀXᵀD, the operator is M = V diag(1 / (v + λ)) P. With a bias, X
    and D are centred on their means, and b = mean(D) - mean(X) M.
    """

    def __init__(self, moments: Moments, options: Ghost) -> None:
        import torch

        self.options = options
        self.mean_x = moments.x / moments.weight
        self.mean_d = moments.d / moments.weight
        centred = moments.centred(self.mean_x, self.mean_d) if options.bias else moments
        eigenvalues, self.eigenvectors = torch.linalg.eigh(centred.xx)
        self.eigenvalues = eigenvalues.clamp_min(0)
        self.xd = centred.xd
        self.projected_xd = self.eigenvectors.T @ centred.xd

    def solve(self, ridge: float) -> Patch:
        """The patch in float64 for λ = `ridge` times the mean eigenvalue, trace(XᵀX) / C."""
        inverse = self._inverse_eigenvalues(ridge)
        operator = self.eigenvectors @ (inverse[:, None] * self.projected_xd)
        patch = _limit_rank(operator, self.xd, self.options.rank or len(operator))
        if not self.options.bias:
            return patch
        return replace(patch, bias=self.mean_d - self.mean_x @ patch.matrix)

    def residual_norms(self, heldout: Moments, ridge_grid: Sequence[float]) -> list[float]:
        """‖D - (X M + b)‖ for every ridge of the grid, on samples that were not fitted.

        With s = 1 / (v + λ) (`inverse`), G = XᵀX of these samples and P = VᵀXᵀD of the fitted ones,
        ‖X M‖² is sᵀ K s for K = (VᵀGV) ∘ (PPᵀ) (`kernel`), and the squared error is
        ‖D‖² - 2 sᵀ l + sᵀ K s, where l are the row sums of P ∘ (VᵀXᵀD) (`linear`). Once K is known,
        an error costs C² and not C³. An operator of limited rank has no such form.
        """
        if self.options.rank is not None:
            patches = [self.solve(ridge) for ridge in ridge_grid]
            return [heldout.residual_norm(patch.matrix, patch.bias) for patch in patches]

        if self.options.bias:
            heldout = heldout.centred(self.mean_x, self.mean_d)
        kernel = self.eigenvectors.T @ heldout.xx @ self.eigenvectors
        kernel *= self.projected_xd @ self.projected_xd.T
        linear = (self.projected_xd * (self.eigenvectors.T @ heldout.xd)).sum(1)
        residual_norms: list[float] = []
        for ridge in ridge_grid:
            inverse = self._inverse_eigenvalues(ridge)
            square = heldout.dd - 2 * inverse @ linear + inverse @ kernel @ inverse
            residual_norms.append(float(square.clamp_min(0).sqrt()))
        return residual_norms

    def _inverse_eigenvalues(self, ridge: float) -> torch.Tensor:
        """1 / (v + λ), (C,)."""
        import torch

        inverse_values = 1 / (self.eigenvalues + ridge * self.eigenvalues.mean())
        if ridge > 0:
            return inverse_values
        # An eigenvalue below this is rounding: the solution without ridge has minimal norm.
        epsilon = torch.finfo(self.eigenvalues.dtype).eps
        rounding_error = self.eigenvalues[-1] * len(self.eigenvalues) * epsilon
        return torch.where(self.eigenvalues > rounding_error, inverse_values, 0.0)


def _limit_rank(operator: torch.Tensor, xd: torch.Tensor, rank: int) -> Patch:
    """Reduced-rank regression: keep the `rank` strongest directions of the prediction [X; √λ I] M.

    The Gram matrix of the prediction is Mᵀ(XᵀX + λI)M = MᵀXᵀD, so neither X nor λ is needed. The
    patch has two factors, or their product if that has no more numbers.
    """
    import torch

    from lamina.models.boundary import Patch

    channels = len(operator)
    if rank >= channels:
        return Patch(operator)
    prediction_gram = operator.T @ xd
    symmetric_gram = (prediction_gram + prediction_gram.T) / 2
    # eigh sorts ascending: the last eigenvectors are the strongest directions.
    strongest_directions = torch.linalg.eigh(symmetric_gram).eigenvectors[:, -rank:]
    factored_patch = Patch(
        down=operator @ strongest_directions, up=strongest_directions.T.contiguous()
    )
    return factored_patch if 2 * rank < channels else Patch(factored_patch.matrix)
