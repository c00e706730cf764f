"""Taking units out of a model for good: layers leave the list, sub-layers leave a module that adds nothing.

Units are written in base numbering: `"7"` a layer, `"7.attention"` and `"7.mlp"` its halves. `"7.@math"` takes nothing
out: the layer of a donor takes its place (`lamina.models.donors`).
"""

from collections.abc import Iterable, Sequence

from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting
from lamina.models.families import Family
from lamina.models.modeling_lamina import NoAttention, NoMLP, Nothing
from lamina.models.structure import family_of, known_families, layers_of, text_config
from lamina.variant import DONOR

COMPONENTS = ("layer", "attention", "mlp")

# What modules call their layer's number, by which they find their part of a cache.
NUMBERED = ("layer_idx", "layer_id")

# Keys of a configuration under which layers read what another layer has computed, or has weights outside of the layers.
_TIED = {
    "num_kv_shared_layers": "its last layers reuse keys and values of earlier ones (num_kv_shared_layers)",
    "hidden_size_per_layer_input": "each layer has a part of one common embedding (hidden_size_per_layer_input)",
}


def parse(unit: str) -> tuple[int, str]:
    """Layer number and component of a unit.

    >>> parse("7"), parse("7.mlp")
    ((7, 'layer'), (7, 'mlp'))

    Raises
    ------
    LaminaError
        If the text is not a unit.
    """
    number, _, component = str(unit).partition(".")
    component = component or "layer"
    if not number.isdigit() or not (component in COMPONENTS or component[1:] and component.startswith(DONOR)):
        raise LaminaError(f"'{unit}' is not a unit. Write a layer '7', or '7.attention', or '7.mlp'.")
    return int(number), component


def runs(removed: Iterable[int], depth: int) -> list[tuple[int, int]]:
    """Contiguous runs of removed layers as boundaries (start, end): layers start … end-1 are gone.

    >>> runs([3, 7, 4], 12)
    [(3, 5), (7, 8)]

    Raises
    ------
    LaminaError
        If a layer is outside 0 … depth-1.
    """
    gone = sorted(set(removed))
    outside = [layer for layer in gone if not 0 <= layer < depth]
    if outside:
        raise LaminaError(f"layer {outside[0]} does not exist: the model has layers 0 … {depth - 1}.")
    found: list[tuple[int, int]] = []
    for layer in gone:
        if found and found[-1][1] == layer:
            found[-1] = (found[-1][0], layer + 1)
        else:
            found.append((layer, layer + 1))
    return found


def removed_layers(units: Sequence[str]) -> list[int]:
    """Numbers of the whole layers among the units."""
    return sorted(layer for layer, component in map(parse, units) if component == "layer")


def kept_layers(model: PreTrainedModel, units: Sequence[str]) -> list[int]:
    """Numbers of the layers that stay when `units` leave an unpruned model; one without both halves goes whole."""
    parsed = [parse(unit) for unit in units]
    gone = {layer for layer, component in parsed if component == "layer"}
    # Where a norm stands on the stream itself, a layer without its halves still does something.
    if not family_of(model).stream_norm:
        gone |= {layer for layer, part in parsed if part == "attention"} & {
            layer for layer, part in parsed if part == "mlp"
        }
    return [layer for layer in range(len(layers_of(model))) if layer not in gone]


def remove(model: PreTrainedModel, units: Sequence[str]) -> PreTrainedModel:
    """Remove units from an unpruned model, in place, and return it.

    Surviving layers are renumbered from 0 and every per-layer list of the configuration is cut to them, so that the
    key-value cache, generation and a saved checkpoint agree. A layer that loses both halves is removed whole.

    Raises
    ------
    LaminaError
        If a unit does not exist or is named twice, if nothing would be left, or if the family's sub-layers are unknown.
    """
    check(model, units)
    family, layers, config = family_of(model), layers_of(model), text_config(model)
    depth = len(layers)
    parsed = [parse(unit) for unit in units]
    kept = kept_layers(model, units)
    if not kept:
        raise LaminaError(f"removing all {depth} layers leaves no model. Remove at most {depth - 1}.")
    for layer, component in parsed:
        if layer in kept and component == "attention":
            setattr(layers[layer], str(family.attention), NoAttention(layer, family.residual_inside))
        elif layer in kept and component == "mlp":
            _remove_mlp(layers[layer], family)
    if len(kept) < depth:
        survivors = [layers[layer] for layer in kept]
        del layers[:]
        layers.extend(survivors)
        for number, layer_module in enumerate(layers):
            for module in layer_module.modules():
                for name in NUMBERED:
                    if isinstance(getattr(module, name, None), int):
                        setattr(module, name, number)
        cutting.cut(config, kept, depth)
    return model


def check(model: PreTrainedModel, units: Sequence[str]) -> None:
    """Refuse units that cannot leave an unpruned model.

    Raises
    ------
    LaminaError
        If a unit does not exist or is named twice, or if the model or its family cannot lose it.
    """
    family, depth, config = family_of(model), len(layers_of(model)), text_config(model)
    parsed = [parse(unit) for unit in units]
    for layer, component in parsed:
        if layer >= depth:
            raise LaminaError(f"layer {layer} does not exist: the model has layers 0 … {depth - 1}.")
        if component in ("attention", "mlp") and (family.attention is None or not family.mlp):
            raise LaminaError(
                f"removing the {component} of a layer is not known for the model family '{family.name}'. "
                f"Use units: layer, or a model of: {', '.join(known_families())}."
            )
    if len(set(parsed)) != len(parsed):
        raise LaminaError(f"a unit is named twice among {['.'.join(map(str, unit)) for unit in parsed]}.")
    if getattr(config, "lamina", None):
        raise LaminaError(
            "the model is itself an export with patches or removed halves, whose places a second cut would shift. "
            "Prune the model it was made from, or an export with recovery none."
        )
    for key, words in _TIED.items():
        if units and bool(getattr(config, key, 0)):
            raise LaminaError(
                f"the model cannot lose a part of its depth: {words}, and a cut would give them those of other layers. "
                "Use a model whose layers stand alone."
            )
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise LaminaError(
            "the model scales attention by its layer number (scale_attn_by_inverse_layer_idx), which renumbering "
            "would change on reload. Use a model without that option."
        )


def _remove_mlp(layer: nn.Module, family: Family) -> None:
    """Put nothing in place of the MLP; where the layer holds its two projections itself, the second gives the zero."""
    if len(family.mlp) == 1:
        setattr(layer, family.mlp[0], NoMLP(family.residual_inside))
        return
    for name in family.mlp[:-1]:
        setattr(layer, name, Nothing())
    setattr(layer, family.mlp[-1], NoMLP(residual_inside=False))
