"""Healing by training every weight of a variant, from the pruned weights or from random ones.

From the pruned weights with objective `distill`, it is a small version of Minitron's recipe [arXiv
2408.11796]. From random weights, it trains a model of the same shape on the same batches in the
same order. Weights in bfloat16 are trained as copies in float32. The variant is validated and saved
in its own dtype, rounded from these copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina.errors import LaminaError
from lamina.options.entry import option
from lamina.options.healings import Healing

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.healing.batches import TrainingSource
    from lamina.healing.training import TrainingRow
    from lamina.models.boundary import Boundary, Repairing
    from lamina.store.unfinished import Progress


class Full(Healing):
    """All weights of the pruned model, including embeddings and head.

    With `objective: distill`, this is depth pruning with distillation, after Minitron (arXiv
    2408.11796). With `start: random`, it trains the same small model from scratch, for comparison.
    """

    method: Literal["full"] = "full"
    start: Literal["pruned", "random"] = option(
        "Initial weights: those that are left after pruning (`pruned`), or random ones, as "
        "transformers initialises a model of this shape (`random`).",
        "pruned",
    )
    layers_again: Literal["shared", "copied"] = option(
        "Whether a repeated layer has one set of weights for all of its runs (`shared`), or one "
        "for each run (`copied`).",
        "shared",
    )


def heal(
    base: PreTrainedModel,
    plan: Mapping[str, Any],
    patches: Mapping[Boundary, Repairing] | None,
    sources: Sequence[TrainingSource],
    options: Full,
    progress: Progress | None = None,
) -> tuple[dict[str, nn.Parameter], list[TrainingRow]]:
    """Train all weights of a variant of `base`, whose own weights do not change.

    Returns the weights of the best epoch by name, and the rows of table `training`.

    Raises LaminaError if random weights are asked for a variant with patches or without sub-layers,
    or as `training.Trainer` does.
    """
    import torch

    from lamina.healing.objectives import Objective
    from lamina.healing.training import Trainer
    from lamina.models.boundary import unshare_parameters
    from lamina.models.materialise import materialise

    variant = materialise(base, plan, patches)
    torch.manual_seed(options.seed)
    weights = unshare_parameters(variant, options.layers_again == "copied")
    if options.start == "random":
        _draw_random_weights(variant, weights)

    for weight in weights.values():
        weight.requires_grad_(True)
    objective = Objective.for_plan(options.objective, variant, base, plan, options.temperature)
    rows = Trainer(weights, objective, sources, options, nullcontext, progress).run()
    for weight in weights.values():
        weight.requires_grad_(False)
    return weights, rows


def _draw_random_weights(variant: PreTrainedModel, weights: Mapping[str, nn.Parameter]) -> None:
    """Give the weights the values that transformers draws for a new model of this shape."""
    from lamina.models.export.modeling_lamina import describe
    from lamina.models.manifest import auto_class

    if any(describe(variant).values()):
        raise LaminaError(
            "start: random trains a plain model of fewer layers, but this variant has patches or "
            "lacks sub-layers. Heal it with `repairs: [none]` and a selector with `units: layer`."
        )
    random_model = auto_class(variant.config).from_config(variant.config)
    random_weights = dict(random_model.named_parameters())
    for name, weight in weights.items():
        weight.data.copy_(random_weights[name])


def save(weights: Mapping[str, nn.Parameter], folder: str | Path) -> None:
    """Write all weights in place of an adapter, under the names of the variant's parameters."""
    from lamina.healing.adapter import CONFIG_WITHOUT_UPDATES, write_adapter
    from lamina.models.adapters import ALL_WEIGHTS

    write_adapter(folder, weights, CONFIG_WITHOUT_UPDATES, ALL_WEIGHTS)
