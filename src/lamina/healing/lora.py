"""Healing by a short training: low-rank updates of projections, patches of the stream, or both.

Settings follow arXiv 2605.14075, appendix E.7, except that the epoch is chosen on a validation split. Validation and
benchmarks use the same model: the update is merged into the weights, in their dtype.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lamina.config.entry import option
from lamina.config.healings import Healing, Trained
from lamina.config.repairs import Repair
from lamina.errors import LaminaError

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.healing.training import Source
    from lamina.models.boundary import Boundary, Repairing
    from lamina.store.unfinished import Progress


class Lora(Trained, Healing):
    """Low-rank updates of the projections that are left, after arXiv 2605.14075, appendix E.7, and the patches of the
    repair.
    """

    method: Literal["lora"] = "lora"
    rank: int = option("Rank of the update of each weight matrix.", 2, ge=1)
    alpha: float = option("Scale of the update, divided by the rank.", 2.0, gt=0)
    dropout: float = option("Dropout on the update's input.", 0.05, ge=0, lt=1)
    train: Literal["lora", "patch", "both"] = option(
        "What is trained: low-rank updates, the patches of the repair (from their closed form on), or both.",
        "lora",
    )
    targets: Literal["mlp", "attention", "all"] = option(
        "Whose projections get a low-rank update.", "mlp"
    )
    quantise: Literal["none", "4bit"] = option(
        "Train beside weights in 4 bits, to save memory (QLoRA, by bitsandbytes). The result is not quantised.",
        "none",
    )

    @property
    def patches(self) -> bool:
        return self.train != "lora"


_logger = logging.getLogger(__name__)

NO_ADAPTER: dict[str, Any] = {
    "peft_type": "LORA",
    "target_modules": [],
    "base_model_name_or_path": None,
}


@dataclass(frozen=True)
class Healed:
    """A trained variant."""

    model: PreTrainedModel  # the variant with its adapters beside its weights and its patches as parameters
    weights: Mapping[str, nn.Parameter]  # the trained ones, by their path in `model`
    config: (
        LoraConfig | None
    )  # PEFT's description of the adapters; None if only patches were trained
    targets: str  # the adapted modules, `none` without adapters


def heal(
    base: PreTrainedModel,
    plan: Mapping[str, Any],
    patches: Mapping[Boundary, Repairing] | None,
    sources: Sequence[Source],
    options: Lora,
    progress: Progress | None = None,
) -> tuple[Healed, list[dict[str, Any]]]:
    """Train adapters, patches or both in a variant of `base`, as `options` say; the weights of `base` do not change.

    Returns the best epoch's values, and one row per optimiser step (plus one for epoch 0) for table `training`. The
    last step of each epoch has validation_loss, and `chosen` marks the kept epoch. `progress` holds the state of an
    interrupted training, see `training.train`.

    Raises LaminaError if the variant has no patch to train or no known projections, if there are too few documents for
    a validation split, or if the loss is not a number.
    """
    import torch

    from lamina.healing import training
    from lamina.healing.objectives import Objective
    from lamina.models.materialise import materialise

    variant = materialise(base, plan, patches)
    # Training asks for a gradient of what it trains only, but those flags are shared with the base model.
    flags = [(parameter, parameter.requires_grad) for parameter in variant.parameters()]
    torch.manual_seed(options.seed)
    try:
        healed = trainable(variant, options)
        objective = Objective.of(options.objective, variant, base, plan, options.temperature)
        rows = training.train(
            healed.weights, objective, sources, options, lambda: merged(variant), progress
        )
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    variant.eval()
    return healed, rows


def trainable(variant: PreTrainedModel, options: Lora) -> Healed:
    """The variant prepared for training: only trained weights have a gradient."""
    import torch
    from peft import get_peft_model
    from torch import nn

    from lamina.models.export.modeling_lamina import Patched
    from lamina.models.materialise import names_as_they_are

    for parameter in variant.parameters():
        parameter.requires_grad_(False)
    config = None if options.train == "patch" else lora_config(variant, options)
    if config is not None:
        # Puts the adapters into the variant's own module tree.
        with names_as_they_are(variant):
            get_peft_model(variant, config)
    if options.patches:
        patched = [module for module in variant.modules() if isinstance(module, Patched)]
        if not patched:
            raise LaminaError(
                f"healing with train: {options.train} trains the patches that a repair left, and this variant has "
                "none: repair none leaves none, and others fold theirs into weights. Combine it with a repair of "
                f"method {Repair.of_stream()}, or write train: lora."
            )
        # In float32 for the optimiser; a module rounds them to the stream's dtype.
        for module in patched:
            for name, part in module.patch_parts.items():
                delattr(module, f"patch_{name}")
                module.register_parameter(
                    f"patch_{name}", nn.Parameter(part.detach().to(torch.float32, copy=True))
                )
    weights = {name: weight for name, weight in variant.named_parameters() if weight.requires_grad}
    return Healed(variant, weights, config, "none" if config is None else options.targets)


def lora_config(model: PreTrainedModel, options: Lora) -> LoraConfig:
    """PEFT's description of the adapter: every target that the variant still has, by its full name.

    An update of stacked experts is added to their weights and never sees their inputs, so it cannot have dropout. PEFT
    has one dropout for all updates.
    """
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    from lamina.models.materialise import adaptable

    targets = adaptable(model, options.targets)
    if targets.parameters and options.dropout:
        _logger.warning(
            "%s has experts stacked in one parameter, whose updates cannot have dropout: it is trained without.",
            type(model).__name__,
        )
    return LoraConfig(
        r=options.rank,
        # Typed as int, used as the number it is.
        lora_alpha=cast(int, options.alpha),
        lora_dropout=0.0 if targets.parameters else options.dropout,
        target_modules=targets.modules,
        target_parameters=targets.parameters or None,
        fan_in_fan_out=any(
            isinstance(model.get_submodule(name), Conv1D) for name in targets.modules
        ),
        bias="none",
        task_type="CAUSAL_LM",
    )


def save(healed: Healed, folder: str | Path) -> None:
    """Write adapter_model.safetensors and adapter_config.json for PEFT, without paths of this machine.

    A trained patch is in the same file as the adapters, under the name of the buffer that it replaces.
    """
    state = {
        f"base_model.model.{name.replace('.default.', '.')}": weight.detach().cpu().contiguous()
        for name, weight in healed.weights.items()
    }
    config = NO_ADAPTER
    if healed.config is not None:
        settings = healed.config.to_dict() | {
            "base_model_name_or_path": None,
            "inference_mode": True,
        }
        settings["target_modules"] = sorted(settings["target_modules"])
        config = {key: value for key, value in settings.items() if not isinstance(value, set)}
    write(Path(folder), state, config, healed.targets)


def save_empty(folder: str | Path) -> None:
    """Write the files of an adapter that does not exist, because its plan was refused."""
    write(Path(folder), {}, NO_ADAPTER, "none")


def write(
    folder: Path, state: Mapping[str, torch.Tensor], config: Mapping[str, Any], targets: str
) -> None:
    """Write the two files of an adapter; `targets` names the modules that its weights belong to."""
    from lamina.models.materialise import ADAPTED, SETTINGS
    from lamina.store import parquet as store

    text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
    store.write_text(folder / "adapter_config.json", text)
    # PEFT knows its own keys only, so what seals the settings stands beside the weights.
    metadata = {ADAPTED: targets, SETTINGS: hashlib.sha256(text.encode()).hexdigest()}
    store.write_tensors(folder / "adapter_model.safetensors", state, metadata)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """While open, each adapted projection computes as in a saved variant: its update is merged into its weight.

    Only one weight is copied at a time, again in every pass. So the weights shared with the base model do not change,
    and memory is bounded.
    """
    from peft.tuners.lora import LoraLayer
    from torch import nn

    from lamina.models.materialise import adapted_weight, own_adapted

    weights: dict[nn.Module, nn.Parameter] = {}

    def merge(module: Any, args: Any) -> None:
        weights[module] = own_adapted(module)
        module.merge()

    def restore(module: Any, args: Any, output: Any) -> None:
        base, name = adapted_weight(module)
        if module in weights:
            setattr(base, name, weights.pop(module))
        module.merged_adapters.clear()

    with ExitStack() as handles:
        for layer in (
            cast(nn.Module, module) for module in model.modules() if isinstance(module, LoraLayer)
        ):
            base, name = adapted_weight(layer)
            # Weights in 4 bits cannot be merged, so an update stands beside them.
            if getattr(base, name).is_floating_point():
                handles.enter_context(layer.register_forward_pre_hook(merge))
                # Also where memory runs out on the way, since the batch is then tried again in halves.
                handles.enter_context(layer.register_forward_hook(restore, always_call=True))
        yield
