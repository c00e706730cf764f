"""A variant in memory: the base model with a plan's edits, patches and an adapter.

The base model is not changed: a variant copies the module structure and shares every parameter that
it does not change, so that one load serves any number of variants.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.adapters import apply_adapter
from lamina.models.boundary import Boundary, Repairing, share_weights
from lamina.models.export import modeling_lamina
from lamina.models.repaired import cut_and_repair


def materialise(
    model: PreTrainedModel,
    plan: Mapping[str, Any] | None,
    patches: Mapping[Boundary, Repairing] | None = None,
    adapter: str | Path | None = None,
) -> PreTrainedModel:
    """The variant as a plain transformers model in evaluation mode; `model` itself is not changed.

    model: the base model.
    plan: a plan with its edits (`units`) and `replacements`; None gives the base model, with its
        weights shared.
    patches: one repair per contiguous run of removed units, by boundary, numbered as in the base
        model.
    adapter: folder that a healing of the same plan and patches wrote. It holds a PEFT LoRA adapter,
        which is merged into copies of the weights that it changes; or trained patches, which
        replace `patches`; or both; or trained weights, which replace those of the whole model.

    Raises LaminaError if the plan was refused, the model cannot have the edits, patches and plan
    do not fit together, or the adapter belongs to another variant.
    """
    if plan is None:
        return share_weights(model)
    variant = cut_and_repair(model, plan, patches)
    if adapter is not None:
        variant = apply_adapter(variant, Path(adapter))
    if any(modeling_lamina.describe(variant).values()):
        _refuse_plain_save(variant)
    return variant.eval()


class _Unsavable:
    """Mixed into the class of a variant that a stock checkpoint cannot hold."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: transformers would save the patch and ignore it on reload.

        Raises LaminaError always.
        """
        raise LaminaError(
            "a plain save_pretrained of a variant with patches, damped layers or removed sub-layers "
            "would lose them on reload. Write it with lamina.models.export.save.save_variant(model, folder), or with "
            "`lamina export VARIANT`."
        )


def _refuse_plain_save(variant: PreTrainedModel) -> None:
    model_class = type(variant)
    attributes = {"__module__": model_class.__module__}
    variant.__class__ = type(model_class.__name__, (_Unsavable, model_class), attributes)
