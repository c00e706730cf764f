"""The base model with a plan's edits and patches: a variant before any training."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import check, replacements
from lamina.models.boundary import Boundary, Place, Repairing, check_boundaries, share_weights
from lamina.models.surgery import apply_edits, steps_of


def cut_and_repair(
    model: PreTrainedModel,
    plan: Mapping[str, Any],
    patches: Mapping[Boundary, Repairing] | None = None,
) -> PreTrainedModel:
    """A copy that shares all weights, cut and patched; arguments as of `materialise`.

    Raises LaminaError if the plan was refused, the model cannot have the edits, or patches and plan
    do not fit together.
    """
    variant = share_weights(model)
    if plan.get("refused") or not plan["units"]:
        raise LaminaError(f"the plan changes nothing: {plan.get('refused') or 'it has no units'}")

    edits = plan["units"]
    donor_layers = replacements.replacement_layers(model, edits, plan.get("replacements", {}))
    apply_edits(variant, edits, donor_layers)
    check.check_edits(model, edits, check.probe_sequence(model))

    if patches is not None:
        check_boundaries(model, edits, patches)
        steps = steps_of(model, edits)
        for boundary, repair in sorted(patches.items()):
            repair.apply(variant, Place.of(boundary, steps))
    return variant.eval()
