"""Healing by a short training of low-rank updates (LoRA), of a repair's patches, or of both.

The defaults are those of arXiv 2605.14075, appendix E.7, except that the epoch is chosen on a
validation split. Validation and benchmarks see the same model: the updates merged into the weights,
in the dtype of the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lamina.errors import LaminaError
from lamina.options.entry import option
from lamina.options.healings import Healing
from lamina.options.repairs import Repair

if TYPE_CHECKING:
    from peft import LoraConfig
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.healing.batches import TrainingSource
    from lamina.healing.training import TrainingRow
    from lamina.models.boundary import Boundary, Repairing
    from lamina.store.unfinished import Progress

_logger = logging.getLogger(__name__)


class Lora(Healing):
    """Low-rank updates of the remaining projections, and the patches of the repair.

    The updates follow arXiv 2605.14075, appendix E.7.
    """

    method: Literal["lora"] = "lora"
    rank: int = option("Rank of the update of each weight matrix.", 2, ge=1)
    alpha: float = option("Scale of the update: it is multiplied by alpha / rank.", 2.0, gt=0)
    dropout: float = option("Dropout on the update's input.", 0.05, ge=0, lt=1)
    train: Literal["lora", "patch", "both"] = option(
        "What is trained: low-rank updates (`lora`), the patches of the repair, starting from "
        "their closed-form fit (`patch`), or `both`.",
        "lora",
    )
    targets: Literal["mlp", "attention", "all"] = option(
        "Sub-layers whose projections get a low-rank update.", "mlp"
    )
    quantise: Literal["none", "4bit"] = option(
        "`4bit` keeps the frozen weights in 4 bits during training, to save memory (QLoRA, by "
        "bitsandbytes). The result is not quantised.",
        "none",
    )

    @property
    def trains_patches(self) -> bool:
        return self.train != "lora"

    @property
    def update_rank(self) -> int:
        return self.rank

    @property
    def base_quantisation(self) -> str:
        return self.quantise


@dataclass(frozen=True)
class LoraVariant:
    """A variant whose adapters and patches are trained, and not yet merged."""

    model: PreTrainedModel  # the variant, with PEFT's layers around its projections
    weights: Mapping[str, nn.Parameter]  # what is trained, by name in `model`
    peft_config: LoraConfig | None  # None if only patches are trained
    targets: str  # which projections have an update; `none` if only patches are trained


def heal(
    base: PreTrainedModel,
    plan: Mapping[str, Any],
    patches: Mapping[Boundary, Repairing] | None,
    sources: Sequence[TrainingSource],
    options: Lora,
    progress: Progress | None = None,
) -> tuple[LoraVariant, list[TrainingRow]]:
    """Train updates, patches or both in a variant of `base`, whose own weights do not change.

    Returns the variant with the weights of the best epoch, and the rows of table `training`.

    Raises LaminaError if the variant has no patches to train or no projections to adapt, or as
    `training.Trainer` does.
    """
    import torch

    from lamina.healing.objectives import Objective
    from lamina.healing.training import Trainer
    from lamina.models.materialise import materialise

    variant = materialise(base, plan, patches)
    torch.manual_seed(options.seed)
    with _gradient_flags_restored(variant):
        lora_variant = prepare_training(variant, options)
        objective = Objective.for_plan(options.objective, variant, base, plan, options.temperature)
        merge_updates = partial(merged_updates, variant)
        trainer = Trainer(
            lora_variant.weights, objective, sources, options, merge_updates, progress
        )
        rows = trainer.run()
    variant.eval()
    return lora_variant, rows


@contextmanager
def _gradient_flags_restored(variant: PreTrainedModel) -> Iterator[None]:
    """Restore `requires_grad` of the weights that the variant shares with its base model."""
    flags = [(parameter, parameter.requires_grad) for parameter in variant.parameters()]
    try:
        yield
    finally:
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)


def prepare_training(variant: PreTrainedModel, options: Lora) -> LoraVariant:
    """Add what the options train to a variant; only these weights require a gradient.

    Raises LaminaError if there is nothing to train.
    """
    from peft import get_peft_model

    from lamina.models.adapters import untranslated_names

    for parameter in variant.parameters():
        parameter.requires_grad_(False)
    peft_config = None
    if options.train != "patch":
        peft_config = configure_peft(variant, options)
        # PEFT puts its layers into the module tree of the variant.
        with untranslated_names(variant):
            get_peft_model(variant, peft_config)
    if options.trains_patches:
        _make_patches_trainable(variant, options)

    trained_weights = {
        name: weight for name, weight in variant.named_parameters() if weight.requires_grad
    }
    targets = "none" if peft_config is None else options.targets
    return LoraVariant(variant, trained_weights, peft_config, targets)


def _make_patches_trainable(variant: PreTrainedModel, options: Lora) -> None:
    """Replace the buffers of all patches by parameters.

    These are in float32, for the optimiser; a patched module rounds them to the dtype of its
    stream.
    """
    import torch
    from torch import nn

    from lamina.models.export.modeling_lamina import Patched

    patched_modules = [module for module in variant.modules() if isinstance(module, Patched)]
    if not patched_modules:
        raise LaminaError(
            f"train: {options.train} trains the patches of a repair, but this variant has none: "
            "with repair none there are no patches, and some repairs fold theirs into the "
            f"weights. Use a repair of method {Repair.of_stream()}, or write `train: lora`."
        )
    for module in patched_modules:
        for name, tensor in module.patch_parts.items():
            parameter = nn.Parameter(tensor.detach().to(torch.float32, copy=True))
            delattr(module, f"patch_{name}")
            module.register_parameter(f"patch_{name}", parameter)


def configure_peft(model: PreTrainedModel, options: Lora) -> LoraConfig:
    """PEFT's configuration, with every targeted projection by its full name.

    The update of experts that are stacked in one parameter is added to their weights. It never sees
    their inputs, so it cannot have dropout. PEFT has one dropout for all updates.
    """
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    from lamina.models.adapters import find_adaptable

    adaptable = find_adaptable(model, options.targets)
    update_dropout = options.dropout
    if adaptable.parameters and update_dropout:
        _logger.warning(
            "%s has experts stacked in one parameter, whose updates cannot have dropout: it is "
            "trained without.",
            type(model).__name__,
        )
        update_dropout = 0.0
    has_conv1d = any(isinstance(model.get_submodule(name), Conv1D) for name in adaptable.modules)
    return LoraConfig(
        r=options.rank,
        lora_alpha=cast(int, options.alpha),  # annotated as int, but PEFT accepts any number
        lora_dropout=update_dropout,
        target_modules=adaptable.modules,
        target_parameters=adaptable.parameters or None,
        fan_in_fan_out=has_conv1d,
        bias="none",
        task_type="CAUSAL_LM",
    )


def save(lora_variant: LoraVariant, folder: str | Path) -> None:
    """Write the adapter in PEFT's format, without paths of this machine.

    Trained patches are in the same file, under the names of the buffers that they replace.
    """
    from lamina.healing.adapter import CONFIG_WITHOUT_UPDATES, write_adapter

    # In memory, the name of an update contains its adapter, `default`; in a file it does not.
    saved_weights = {
        name.replace(".default.", "."): weight for name, weight in lora_variant.weights.items()
    }
    adapter_config = CONFIG_WITHOUT_UPDATES
    if lora_variant.peft_config is not None:
        peft_settings = lora_variant.peft_config.to_dict()
        peft_settings["base_model_name_or_path"] = None
        peft_settings["inference_mode"] = True
        peft_settings["target_modules"] = sorted(peft_settings["target_modules"])
        # The order of a set differs between processes, but the bytes of the file must not.
        adapter_config = {
            key: value for key, value in peft_settings.items() if not isinstance(value, set)
        }
    write_adapter(folder, saved_weights, adapter_config, lora_variant.targets)


@contextmanager
def merged_updates(model: nn.Module) -> Iterator[None]:
    """While open, projections compute with their updates merged, as in a saved variant."""
    from peft.tuners.lora import LoraLayer

    from lamina.models.adapters import adapted_weight

    merging = TemporaryMerge()
    lora_layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    with ExitStack() as hooks:
        for layer in lora_layers:
            module = cast("nn.Module", layer)
            weight_holder, weight_name = adapted_weight(module)
            # Updates cannot be merged into 4-bit weights, and remain separate.
            if not getattr(weight_holder, weight_name).is_floating_point():
                continue
            hooks.enter_context(module.register_forward_pre_hook(merging.merge))
            # Also after an error: if memory runs out, the batch is tried again in halves.
            restore = module.register_forward_hook(merging.restore, always_call=True)
            hooks.enter_context(restore)
        yield


class TemporaryMerge:
    """Hooks that merge an update into a copy of its weight while a projection is called.

    One weight at a time is copied, in every pass again. So the weights that are shared with the
    base model do not change, and memory is bounded.
    """

    def __init__(self) -> None:
        self.shared_weights: dict[nn.Module, nn.Parameter] = {}

    def merge(self, layer: Any, args: Any) -> None:
        """Before the call: merge into a copy of the weight."""
        from lamina.models.adapters import unshare_adapted_weight

        self.shared_weights[layer] = unshare_adapted_weight(layer)
        layer.merge()

    def restore(self, layer: Any, args: Any, output: Any) -> None:
        """After the call: put the shared weight back."""
        from lamina.models.adapters import adapted_weight

        if layer in self.shared_weights:
            weight_holder, weight_name = adapted_weight(layer)
            setattr(weight_holder, weight_name, self.shared_weights.pop(layer))
        layer.merged_adapters.clear()
