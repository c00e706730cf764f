"""Healing by training every weight of a variant, from the pruned weights or from random weights.

From the pruned weights with objective `distill`, it is a small version of Minitron's recipe [arXiv 2408.11796]. From
random weights, it trains a model of the same shape on the same batches in the same order. Weights in bfloat16 are
trained as copies in float32. The validated and saved variant has its own dtype, rounded from the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.entry import option
from lamina.config.healings import Healing, Trained
from lamina.errors import LaminaError
from lamina.healing import lora

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.healing.training import Source
    from lamina.models.boundary import Boundary, Repairing
    from lamina.store.unfinished import Progress


class Full(Trained, Healing):
    """All weights of the pruned model, its embeddings and its head included: depth pruning with distillation, after
    Minitron (arXiv 2408.11796), or the same small model trained from nothing, to compare with.
    """

    method: Literal["full"] = "full"
    start: Literal["pruned", "random"] = option(
        "What training starts from: the weights that pruning left, or random ones, as transformers draws them for a "
        "model of this shape.",
        "pruned",
    )


save_empty = lora.save_empty


def heal(
    base: PreTrainedModel,
    plan: Mapping[str, Any],
    patches: Mapping[Boundary, Repairing] | None,
    sources: Sequence[Source],
    options: Any,
    progress: Progress | None = None,
) -> tuple[dict[str, nn.Parameter], list[dict[str, Any]]]:
    """Train all weights of a variant of `base`; the weights of `base` do not change.

    Returns the best epoch's weights by name, and the rows of table `training`, as `lora.heal` does.

    Raises LaminaError if random weights are wanted for a variant that is not a plain model of its class, or as in
    `training.train`.
    """
    import torch

    from lamina.healing import training
    from lamina.healing.objectives import Objective
    from lamina.models.boundary import own_all
    from lamina.models.export.modeling_lamina import describe
    from lamina.models.manifest import auto_class
    from lamina.models.materialise import materialise

    variant = materialise(base, plan, patches)
    torch.manual_seed(options.seed)
    weights = own_all(variant)
    if options.start == "random":
        if any(describe(variant).values()):
            raise LaminaError(
                "start: random trains a plain model of fewer layers, and this variant has patches or lacks halves of "
                "layers. Heal it with repairs: [none] and a selector with units: layer."
            )
        fresh = dict(auto_class(variant.config).from_config(variant.config).named_parameters())
        for name, weight in weights.items():
            weight.data.copy_(fresh[name])
    for weight in weights.values():
        weight.requires_grad_(True)
    objective = Objective.of(options.objective, variant, base, plan, options.temperature)
    rows = training.train(weights, objective, sources, options, nullcontext, progress)
    for weight in weights.values():
        weight.requires_grad_(False)
    return weights, rows


def save(weights: Mapping[str, nn.Parameter], folder: str | Path) -> None:
    """Write all weights to the folder of an adapter, under the names of the variant's parameters."""
    from lamina.models.materialise import EVERYTHING

    state = {
        f"base_model.model.{name}": weight.detach().cpu().contiguous()
        for name, weight in weights.items()
    }
    lora.write(Path(folder), state, lora.NO_ADAPTER, EVERYTHING)
