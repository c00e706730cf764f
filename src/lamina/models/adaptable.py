"""The weights that low-rank updates can adapt: linear modules, and experts stacked in one parameter."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import own
from lamina.models.structure import family_of, linear_maps, stacked_maps


@dataclass(frozen=True)
class Adaptable:
    """Full names of linear `modules` and of `parameters` that hold a matrix for each expert."""

    modules: list[str]
    parameters: list[str]

    @property
    def holders(self) -> set[str]:
        """Names of the modules that hold PEFT's updates; PEFT wraps a module once for each of its parameters."""
        stacked = Counter(name.rpartition(".")[0] for name in self.parameters)
        wrapped = {f"{name}{'.base_layer' * depth}" for name, count in stacked.items() for depth in range(count)}
        return {*self.modules, *wrapped}


def adaptable(model: PreTrainedModel, targets: str) -> Adaptable:
    """The projections that `targets` names: those of `mlp`, of `attention`, of both (`all`) or of `none`.

    Raises
    ------
    LaminaError
        If there are none.
    """
    parts = {"all": ("mlp", "attention"), "none": ()}.get(targets, (targets,))
    targeted = Adaptable(
        [name for part in parts for name in linear_maps(model, part)],
        [name for part in parts for name in stacked_maps(model, part)],
    )
    if parts and not targeted.holders:
        other = "attention" if targets == "mlp" else "mlp"
        raise LaminaError(
            f"the {' and '.join(parts)} of the model family '{family_of(model).name}' have no linear modules, and no "
            f"experts stacked in one parameter, that LoRA can adapt. Write targets: {other}, or method: full."
        )
    return targeted


def adapted_weight(layer: nn.Module) -> tuple[nn.Module, str]:
    """The module behind one of PEFT's layers, and the name of the parameter that the update changes."""
    inner: Any = layer
    while hasattr(inner, "base_layer"):
        inner = inner.base_layer
    return inner, getattr(layer, "parameter_name", "weight")


def own_adapted(layer: nn.Module) -> nn.Parameter:
    """Put a copy of the adapted weight in its place, so that an update can be merged; return the shared weight."""
    module, name = adapted_weight(layer)
    shared: nn.Parameter = getattr(module, name)
    own(module, name)
    return shared


@contextmanager
def names_as_they_are(model: PreTrainedModel) -> Iterator[None]:
    """While open, PEFT takes the names of modules as they are.

    Otherwise PEFT would translate names by the model's type. In families with experts it would take `gate_proj` for the
    separate experts of checkpoints from before transformers stacked them.
    """
    model.config.__dict__["model_type"] = ""
    try:
        yield
    finally:
        del model.config.__dict__["model_type"]
