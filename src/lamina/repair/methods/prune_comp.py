"""PruneComp: restore the size of the stream behind a removed run by one number that is folded into the weights.

The number is the mean over samples of the mean over channels of mean_t |h_end| / mean_t |h_start|. arXiv 2507.18212
multiplies the embeddings and the output projections of attention and MLP before the boundary by it. Here those behind
the boundary, with their biases, are divided by it: the whole stream is smaller by the number, and the norms through
which it is read undo that. Up to their epsilon it is the same model, and it also exists where an embedding cannot be
scaled, because it is the output projection as well or a norm follows it. The numbers of several runs multiply. Nothing
is added to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from lamina.config.repairs import Repair
from lamina.repair.methods import linearpatch
from lamina.repair.methods.linearpatch import Channels, LinearPatch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.engine.moments import Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch, Place
    from lamina.repair.protocol import Fit, Tensors


class PruneComp(Repair):
    """One number that makes the stream as large as it was, folded into all weights before a run, after
    arXiv 2507.18212.
    """

    FOLDED = True

    method: Literal["prune_comp"] = "prune_comp"


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: PruneComp,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Channels]]]:
    """Sums of the unpruned stream per channel, separate for fit and held-out samples.

    Raises LaminaError if the family has no weights into which the number could be folded.
    """
    from lamina.models.export.writing import writers
    from lamina.models.structure import layers_of

    writers(model, range(len(layers_of(model))))
    return linearpatch.collect(model, sources, boundaries, LinearPatch(form="diag"), seed)


def fit(statistics: Statistics[Channels], options: PruneComp) -> Fit:
    """The mean ratio over samples and channels."""
    from lamina.repair.protocol import Fit

    seen, unseen = statistics.fit, statistics.heldout
    scale = float(seen.mean_ratios().mean())
    return Fit(
        tensors=_tensors(seen.plus(unseen)),
        validated=_tensors(seen),
        facts={**linearpatch.errors(seen, unseen, scale), "parameters": 0, **statistics.counts()},
    )


def apply(variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
    """Divide the weights of all modules that add to the stream behind the boundary."""
    import torch

    from lamina.models.boundary import own
    from lamina.models.export.writing import writers
    from lamina.models.structure import layers_of

    with torch.no_grad():
        scale = float(tensors["scale"][0])
        for module in writers(variant, range(place.position, len(layers_of(variant)))):
            for name in ("weight", "bias"):
                if getattr(module, name, None) is not None:
                    own(module, name).div_(scale)


def as_patch(tensors: Tensors) -> Patch:
    """A multiple of the stream. It is equal to the folded factor except for the epsilon of the norms."""
    import torch

    from lamina.models.boundary import Patch

    return Patch(torch.diag(tensors["scale"] - 1))


def _tensors(sums: Channels) -> dict[str, torch.Tensor]:
    """The number, once per channel."""
    ratios = sums.mean_ratios()
    return {"scale": ratios.mean().expand_as(ratios).float().contiguous()}
