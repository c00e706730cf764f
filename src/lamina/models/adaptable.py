"""The linear modules of a model that low-rank updates can stand beside."""

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lamina.errors import LaminaError
from lamina.models.structure import family_of, layers_of, projection_paths


def paths(model: PreTrainedModel, targets: str) -> list[str]:
    """Full module names of the projections of `mlp`, `attention`, both (`all`) or `none`, of those there are now.

    Raises
    ------
    LaminaError
        If the family has none that are known.
    """
    found = projection_paths(model) if targets in ("mlp", "all") else []
    return found + (_attention_paths(model) if targets in ("attention", "all") else [])


def _attention_paths(model: PreTrainedModel) -> list[str]:
    family = family_of(model)
    found = [
        f"{family.layers}.{number}.{family.attention}.{name}"
        for number, layer in enumerate(layers_of(model))
        if family.attention
        for name, module in layer.get_submodule(family.attention).named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    ]
    if not found:
        raise LaminaError(
            f"no projections of attention are known in this model of the family '{family.name}'. Write targets: mlp."
        )
    return found
