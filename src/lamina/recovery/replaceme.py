"""ReplaceMe: a linear map of the output of the last MLP before a removed run, folded into that MLP's weights.

With A the output of the MLP of layer s-1 and the run (s, e), `T = I + (AᵀA + αI)⁻¹ Aᵀ(h_e - h_s)`, and then A T instead
of A (arXiv 2505.02819, for α = 0). The ridge shrinks T towards I, which leaves the model as it was cut, and is relative
and picked as that of `ghost`. Nothing is added to the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from lamina.config.recoveries import Ghost, ReplaceMe
from lamina.errors import LaminaError
from lamina.models.structure import down_projection, family_of
from lamina.models.variant import Boundary, Patch, Place, own
from lamina.recovery import ghost
from lamina.recovery.protocol import Fit, Source, Tensors
from lamina.streams import moments
from lamina.streams.moments import Moments, Statistics


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: ReplaceMe,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Moments]]]:
    """Moments with X = A and D = h_e - h_s, fit and held-out samples apart.

    Raises
    ------
    LaminaError
        If a run begins at layer 0, or the family's MLP output is not added to the stream as it is.
    """
    if any(start == 0 for start, _ in boundaries):
        raise LaminaError(
            "replaceme folds a map into the MLP before the removed layers, and before layer 0 there is none. Keep the "
            "first layer (protect: [0] in the selector), or use a recovery that acts on the stream: ghost."
        )
    before = {start: down_projection(model, start - 1) for start, _ in boundaries}
    return moments.collect(model, sources, boundaries, seed, regressors=before)


def fit(statistics: Statistics[Moments], options: ReplaceMe) -> Fit:
    """Fit T - I, which is the regression of `ghost` on other inputs."""
    found = ghost.fit(statistics, Ghost(ridge=options.ridge))
    return replace(found, facts={**found.facts, "parameters": 0})


@torch.no_grad()
def apply(variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
    """W <- W T (W as rows in, columns out) and b <- b T in the projection before the boundary."""
    module = down_projection(variant, place.position - 1)
    weight, operator = own(module, "weight"), tensors["operator"].to(variant.device)
    if family_of(variant).transposed:
        weight.add_((weight.float() @ operator).to(weight.dtype))
    else:
        weight.add_((operator.T @ weight.float()).to(weight.dtype))
    if getattr(module, "bias", None) is not None:
        bias = own(module, "bias")
        bias.add_((bias.float() @ operator).to(bias.dtype))


def as_patch(tensors: Tensors) -> Patch | None:
    """No map of the stream: the rest of it, h_s - A, stays as it is."""
    return None
