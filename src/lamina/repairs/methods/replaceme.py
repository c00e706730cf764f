"""ReplaceMe: a linear map of the last MLP's output before a removed run, folded into its weights.

    T = I + (AᵀA + αI)⁻¹ Aᵀ(h_e - h_s),    then A T replaces A

for the run (s, e), where A (tokens, C) is the output of the MLP of layer s - 1 (arXiv 2505.02819,
for α = 0). The ridge shrinks T towards I, which is the cut model without a repair; it is relative
and chosen as in `ghost`. Nothing is added to the model.

With `objective: cosine`, Adam instead minimises the mean over tokens of 1 - cos(A T, h_e - B) with
B = h_s - A, where a token has the weight of its source. Adam starts from T = I and takes one step
per batch. A batch of few tokens, or of a source with a small weight, has a small gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lamina.errors import LaminaError
from lamina.options.entry import option
from lamina.options.repairs import Repair, ridge_option
from lamina.repairs.methods import ghost

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.moments import Moments, Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch, Place
    from lamina.repairs.protocol import Fit, Tensors


class ReplaceMe(Repair):
    """A linear map folded into the weights of the last MLP before a run (arXiv 2505.02819)."""

    LINEAR = False

    method: Literal["replaceme"] = "replaceme"
    objective: Literal["least_squares", "cosine"] = option(
        "`least_squares` has a closed form; `cosine` minimises the cosine distance per token with "
        "Adam.",
        "least_squares",
    )
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    epochs: int = option("With `cosine`: passes over the data.", 10, ge=1)
    learning_rate: float = option("With `cosine`: learning rate of Adam.", 0.0001, gt=0)


def explain_refusal(boundary: Boundary) -> str | None:
    """Why a run cannot be repaired: it begins at layer 0. None if it can."""
    if boundary[0]:
        return None
    return (
        "replaceme folds a map into the MLP before the removed layers, but layer 0 has none before "
        "it. Keep layer 0 (write `protect: [0]` in the selector), or use a repair of the stream: "
        f"{Repair.of_stream()}."
    )


@dataclass(frozen=True)
class CosineStatistics:
    """What a fit with `objective: cosine` needs: moments for its errors, and the trained maps."""

    moments: Statistics[Moments]
    validated_operator: torch.Tensor
    """T - I (C, C), trained without the held-out samples."""
    final_operator: torch.Tensor
    """T - I (C, C), trained on all samples."""


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: ReplaceMe,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Moments] | CosineStatistics]]:
    """Moments with X = A and D = h_e - h_s; with `objective: cosine` also the trained maps.

    Raises LaminaError if a run is refused, or the family changes the MLP output before it adds it
    to the stream.
    """
    from lamina.engine import moments

    projections = _projections(model, boundaries)
    collected = moments.collect_moments(model, sources, boundaries, seed, regressors=projections)
    if options.objective == "least_squares":
        return collected
    operators = _train_operators(model, sources, boundaries, projections, options, seed)
    return (
        (boundary, CosineStatistics(statistics, *operators[boundary]))
        for boundary, statistics in collected
    )


def _projections(model: PreTrainedModel, boundaries: Sequence[Boundary]) -> dict[float, nn.Module]:
    """The down projection into which the map is folded, by the start of the run."""
    from lamina.models.export.writing import down_projection

    for boundary in boundaries:
        reason = explain_refusal(boundary)
        if reason:
            raise LaminaError(reason)
    return {start: down_projection(model, int(start) - 1) for start, _ in boundaries}


def fit(statistics: Statistics[Moments] | CosineStatistics, options: ReplaceMe) -> Fit:
    """Fit T - I by the regression of `ghost` on A; if it was trained, only measure its errors."""
    from lamina.repairs.protocol import Fit

    if not isinstance(statistics, CosineStatistics):
        ridge_fit = ghost.fit(statistics, ghost.Ghost(ridge=options.ridge))
        return replace(ridge_fit, facts={**ridge_fit.facts, "parameters": 0})
    error_columns = ghost.relative_errors(
        statistics.moments, statistics.validated_operator.double()
    )
    return Fit(
        tensors={"operator": statistics.final_operator},
        validated={"operator": statistics.validated_operator},
        facts={
            **error_columns,
            "rank": len(statistics.final_operator),
            "parameters": 0,
            **statistics.moments.counts(),
        },
    )


def _train_operators(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    projections: Mapping[float, nn.Module],
    options: ReplaceMe,
    seed: int,
) -> dict[Boundary, tuple[torch.Tensor, torch.Tensor]]:
    """T - I of every boundary, trained in common passes.

    There are two per boundary, (C, C): one without the held-out samples, one on all samples.
    """
    from lamina.engine.sources import run_sources

    trainer = _CosineTrainer(model, sources, boundaries, sorted(projections), options)
    positions = [position for boundary in boundaries for position in boundary]
    outputs = [projections[start] for start in trainer.starts]
    for _ in range(options.epochs):
        run_sources(model, sources, positions, trainer.step, seed, outputs=outputs)
    return {
        boundary: (validated.detach(), final.detach())
        for boundary, (validated, final) in trainer.operators.items()
    }


class _CosineTrainer:
    """Trains T - I of all boundaries with Adam, a step for each batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        sources: Sequence[Source],
        boundaries: Sequence[Boundary],
        starts: Sequence[float],
        options: ReplaceMe,
    ) -> None:
        import torch
        from torch import nn

        from lamina.engine.batches import TOKENS
        from lamina.models.structure import text_config

        self.starts = starts
        channels = int(text_config(model).hidden_size)
        self.operators: dict[Boundary, tuple[nn.Parameter, nn.Parameter]] = {}
        parameters: list[nn.Parameter] = []
        for boundary in boundaries:
            zero_operators = torch.zeros(2, channels, channels, device=model.device)
            operator_pair = (nn.Parameter(zero_operators[0]), nn.Parameter(zero_operators[1]))
            self.operators[boundary] = operator_pair
            parameters += operator_pair
        # Adam works element-wise, so one optimiser serves all operators. It skips operators without
        # a gradient, which no token of a batch has reached.
        self.optimiser = torch.optim.Adam(parameters, lr=options.learning_rate)

        # Adam is invariant to the scale of the gradients, as long as they stay far above its epsilon.
        n_tokens = 0
        for source in sources:
            n_tokens += sum(len(sequence) for sequence in source.sequences)
        self.loss_scale = 1 / min(TOKENS, n_tokens)

    def step(
        self,
        batch: taps.Batch,
        streams: Mapping[float, torch.Tensor],
        is_heldout: torch.Tensor,
        weight: float,
    ) -> None:
        """Take one step on a batch; a `lamina.engine.sources.Consumer`."""
        import torch

        mlp_outputs = dict(zip(self.starts, batch.outputs, strict=True))
        is_fit_token = batch.real & ~is_heldout[:, None]
        self.optimiser.zero_grad()
        with torch.enable_grad():
            for (start, end), (validated, final) in self.operators.items():
                mlp_output = mlp_outputs[start]
                stream_change = streams[end] - streams[start]
                for operator, is_trained_on in ((validated, is_fit_token), (final, batch.real)):
                    if is_trained_on.any():
                        a = mlp_output[is_trained_on].float()
                        d = stream_change[is_trained_on].float()
                        loss = self.loss_scale * weight * _cosine_distances(a, d, operator).sum()
                        loss.backward()
        self.optimiser.step()


def _cosine_distances(a: torch.Tensor, d: torch.Tensor, operator: torch.Tensor) -> torch.Tensor:
    """1 - cos(A T, h_e - B) of every token, from A and D = h_e - h_s (tokens, C) and T - I.

    h_e - B = h_e - h_s + A = A + D.
    """
    from torch.nn.functional import cosine_similarity

    return 1 - cosine_similarity(a + a @ operator, a + d, dim=-1)


def apply(variant: PreTrainedModel, location: Place, tensors: Tensors) -> None:
    """W ← W T (with inputs as rows and outputs as columns) and b ← b T in the down projection."""
    import torch
    from transformers.pytorch_utils import Conv1D

    from lamina.models.boundary import unshare_parameter
    from lamina.models.export.writing import down_projection

    with torch.no_grad():
        module = down_projection(variant, location.position - 1)
        weight = unshare_parameter(module, "weight")
        operator = tensors["operator"].to(weight.device)
        if isinstance(module, Conv1D):
            change = weight.float() @ operator
        else:
            # A Linear has its outputs as rows.
            change = operator.T @ weight.float()
        weight.add_(change.to(weight.dtype))
        if getattr(module, "bias", None) is not None:
            bias = unshare_parameter(module, "bias")
            bias.add_((bias.float() @ operator).to(bias.dtype))


def as_patch(tensors: Tensors) -> Patch | None:
    """None: this is not a map of the stream, because its other part B = h_s - A does not change."""
    return None
