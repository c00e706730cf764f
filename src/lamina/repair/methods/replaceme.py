"""ReplaceMe: a linear map of the output of the last MLP before a removed run, folded into that MLP's weights.

For the run (s, e), A is the output of the MLP of layer s-1, and `T = I + (AᵀA + αI)⁻¹ Aᵀ(h_e - h_s)`. A T replaces A
(arXiv 2505.02819, for α = 0). The ridge shrinks T towards I, which is the cut model without a repair. The ridge is
relative and chosen as in `ghost`. With `objective: cosine`, Adam instead minimises the mean over tokens of
1 - cos(A T, h_e - B) with B = h_s - A, where a token has the weight of its source. Adam starts from T = I and takes one
step per batch of forward passes. A batch of few tokens, or of a source with a small weight, has a small gradient.
Nothing is added to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lamina.config.entry import option
from lamina.config.repairs import Repair, ridge_option
from lamina.errors import LaminaError
from lamina.repair.methods import ghost

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.moments import Moments, Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch, Place
    from lamina.repair.protocol import Fit, Tensors


class ReplaceMe(Repair):
    """One linear map of what the last MLP before a run gives out, folded into its weights, after arXiv 2505.02819."""

    LINEAR = False

    method: Literal["replaceme"] = "replaceme"
    objective: Literal["least_squares", "cosine"] = option(
        "`least_squares` has a closed form; `cosine` minimises the cosine distance per token with Adam.",
        "least_squares",
    )
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    epochs: int = option("With `cosine`: passes over the data.", 10, ge=1)
    learning_rate: float = option("With `cosine`: step size of Adam.", 0.0001, gt=0)


def refused(boundary: Boundary) -> str | None:
    """Why a run cannot be repaired: it begins at layer 0."""
    return (
        None
        if boundary[0]
        else (
            "replaceme folds a map into the MLP before the removed layers, and before layer 0 there is none. Keep the "
            f"first layer (protect: [0] in the selector), or use a repair of the stream: {Repair.of_stream()}."
        )
    )


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: ReplaceMe,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Moments] | Trained]]:
    """Moments with X = A and D = h_e - h_s, separate for fit and held-out samples.

    Raises LaminaError if a run is refused, or the family changes the MLP output before it adds it to the stream.
    """
    from lamina.engine import moments

    before = _projections(model, boundaries)
    statistics = moments.collect(model, sources, boundaries, seed, regressors=before)
    if options.objective == "least_squares":
        return statistics
    trained = _train(model, sources, boundaries, before, options, seed)
    return ((boundary, Trained(sums, trained[boundary])) for boundary, sums in statistics)


def _projections(model: PreTrainedModel, boundaries: Sequence[Boundary]) -> dict[float, nn.Module]:
    """The module into which the map of each start is folded."""
    from lamina.models.export.writing import down_projection

    if reason := next(filter(None, map(refused, boundaries)), None):
        raise LaminaError(reason)
    return {start: down_projection(model, int(start) - 1) for start, _ in boundaries}


@dataclass
class Trained:
    """Moments (`sums`), and the trained T - I, (C, C) each: on the fit samples, and on all samples."""

    sums: Statistics[Moments]
    operators: tuple[torch.Tensor, torch.Tensor]


def fit(statistics: Statistics[Moments] | Trained, options: ReplaceMe) -> Fit:
    """Fit T - I by the regression of `ghost` on other inputs; if T - I was trained, only measure its errors."""
    from lamina.repair.protocol import Fit

    if not isinstance(statistics, Trained):
        regression = ghost.fit(statistics, ghost.Ghost(ridge=options.ridge))
        return replace(regression, facts={**regression.facts, "parameters": 0})
    sums, (validated, final) = statistics.sums, statistics.operators
    errors = ghost.errors(sums.fit, sums.heldout, validated.double())
    facts = {**errors, "rank": len(final), "parameters": 0, **sums.counts()}
    return Fit({"operator": final}, {"operator": validated}, facts)


def _train(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    before: Mapping[float, nn.Module],
    options: ReplaceMe,
    seed: int,
) -> dict[Boundary, tuple[torch.Tensor, torch.Tensor]]:
    """T - I of every boundary, trained in common passes, once without the held-out samples and once with them."""
    import torch
    from torch import nn
    from torch.nn.functional import cosine_similarity

    from lamina.engine import sources as over
    from lamina.engine.batches import TOKENS
    from lamina.models.structure import text_config

    channels, starts = int(text_config(model).hidden_size), sorted(before)
    pairs = {
        boundary: torch.zeros(2, channels, channels, device=model.device) for boundary in boundaries
    }
    # Adam works entry by entry, so that one optimiser serves all, but for those that a batch has no token for.
    parameters = {b: [nn.Parameter(operator) for operator in pair] for b, pair in pairs.items()}
    every = [parameter for pair in parameters.values() for parameter in pair]
    optimiser = torch.optim.Adam(every, lr=options.learning_rate)

    # Adam does not see by what all gradients are divided, so long as they stay far above its epsilon.
    share = 1 / min(
        TOKENS, sum(len(sequence) for source in sources for sequence in source.sequences)
    )

    @torch.enable_grad()
    def step(
        batch: taps.Batch, streams: Mapping[float, torch.Tensor], held: torch.Tensor, weight: float
    ) -> None:
        given = dict(zip(starts, batch.outputs, strict=True))
        optimiser.zero_grad()
        for (start, end), pair in parameters.items():
            for operator, real in zip(pair, (batch.real & ~held[:, None], batch.real), strict=True):
                if real.any():
                    a, gap = (
                        given[start][real].float(),
                        (streams[end] - streams[start])[real].float(),
                    )
                    (
                        share
                        * weight
                        * (1 - cosine_similarity(a + a @ operator, a + gap, dim=-1)).sum()
                    ).backward()
        optimiser.step()

    places = [place for boundary in boundaries for place in boundary]
    for _ in range(options.epochs):
        over.run(model, sources, places, step, seed, outputs=[before[start] for start in starts])
    return {boundary: (pair[0].detach(), pair[1].detach()) for boundary, pair in parameters.items()}


def apply(variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
    """W <- W T (W as rows in, columns out) and b <- b T in the projection before the boundary."""
    import torch
    from transformers.pytorch_utils import Conv1D

    from lamina.models.boundary import unshare_parameter
    from lamina.models.export.writing import down_projection

    with torch.no_grad():
        module = down_projection(variant, place.position - 1)
        weight = unshare_parameter(module, "weight")
        operator = tensors["operator"].to(weight.device)
        if isinstance(module, Conv1D):
            weight.add_((weight.float() @ operator).to(weight.dtype))
        else:
            weight.add_((operator.T @ weight.float()).to(weight.dtype))
        if getattr(module, "bias", None) is not None:
            bias = unshare_parameter(module, "bias")
            bias.add_((bias.float() @ operator).to(bias.dtype))


def as_patch(tensors: Tensors) -> Patch | None:
    """None: this is not a map of the stream, because its other part h_s - A does not change."""
    return None
