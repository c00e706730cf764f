"""Where a loaded model keeps its layers, norms, embeddings and sub-layers, by the record of its family.

A family that is not listed is recognised by its one list of layers, and can then lose whole layers but no sub-layers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.families import FAMILIES, Family


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the decoder, also where a multimodal one wraps it."""
    return model.config.get_text_config(decoder=True)


def family_of(model: PreTrainedModel) -> Family:
    """The family of a loaded model, adjusted to the options of its configuration.

    Raises
    ------
    LaminaError
        If the family is not listed and the model does not have exactly one list of layers.
    """
    config = text_config(model)
    family = FAMILIES.get(config.model_type)
    if family is None or _find(model, family.layers) is None:
        return _recognise(model, config)
    if config.model_type == "opt" and not config.do_layer_norm_before:
        family = replace(family, stream_norm=True)
    if family.final_norm is not None and _find(model, family.final_norm) is None:
        family = replace(family, final_norm=None)
    if _find(model, family.head) is None:
        family = replace(family, head=_name_of(model, model.get_output_embeddings()))
    if config.model_type == "bloom" and config.apply_residual_connection_post_layernorm:
        # The norm's output is the residual there, so taking a sub-layer out does not leave the stream alone.
        family = replace(family, attention=None, mlp=())
    return family


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers."""
    layers = _find(model, family_of(model).layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm between the last layer and the output projection, None in the few models without one."""
    path = family_of(model).final_norm
    return None if path is None else _find(model, path)


def projection_paths(model: PreTrainedModel) -> list[str]:
    """Full module names of the MLP projections that the model has now (removed ones are gone from the list).

    Raises
    ------
    LaminaError
        If the family's projections are not known or are not linear modules.
    """
    family = family_of(model)
    holder = "" if len(family.mlp) > 1 else "".join(family.mlp) + "."
    names = dict(model.named_modules())
    wanted = [
        f"{family.layers}.{number}.{holder}{projection}"
        for number in range(len(layers_of(model)))
        for projection in family.projections
    ]
    found = [name for name in wanted if getattr(names.get(name), "weight", None) is not None]
    if not found:
        raise LaminaError(
            f"the MLP projections of the model family '{family.name}' are not linear modules that LoRA can adapt. "
            f"Healing knows: {', '.join(sorted(name for name, known in FAMILIES.items() if known.projections))}."
        )
    return found


def down_projection(model: PreTrainedModel, layer: int) -> nn.Module:
    """The linear map of a layer's MLP whose output is added to the residual stream.

    Raises
    ------
    LaminaError
        If the family has none, or something stands between it and the stream.
    """
    family = family_of(model)
    if not family.projections:
        raise _unfoldable(family, "has no one linear map that leads from the MLP to the stream, as far as is known")
    refuse_norms_on_stream(model)
    if getattr(text_config(model), "quantization_config", None) is not None:
        raise _unfoldable(family, "is quantised, and would round what is folded into its weights")
    holder = layers_of(model)[layer]
    if len(family.mlp) == 1:
        holder = holder.get_submodule(family.mlp[0])
    return holder.get_submodule(family.projections[-1])


def writers(model: PreTrainedModel, before: int) -> list[nn.Module]:
    """Everything that adds to the stream entering layer `before`: embeddings, and both sub-layers of each layer so far.

    Multiplied by a number, with their biases, they multiply that stream by it, up to the epsilon of the norms.

    Raises
    ------
    LaminaError
        If the family has more that does, or a norm that undoes it, or an embedding that is the head as well.
    """
    family, config, layers = family_of(model), text_config(model), layers_of(model)
    refuse_norms_on_stream(model)
    container = model.get_submodule(family.layers.rpartition(".")[0])
    final = str(family.final_norm).rpartition(".")[2]
    if any("norm" in name and name != final for name, _ in container.named_children()):
        raise _unfoldable(family, "has a norm behind the embedding, which undoes what is folded into it")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if config.tie_word_embeddings or (head is not None and head.weight is embedding.weight):
        raise _unfoldable(family, "ties the embedding here to the output projection, and one cannot be scaled alone")
    if not family.attention or not family.attention_output:
        raise _unfoldable(family, "has no one linear map that leads from attention to the stream, as far as is known")
    path = f"{family.attention}.{family.attention_output}"
    # Learned positions are the embeddings beside that of the tokens.
    embeddings = [module for module in container.modules() if isinstance(module, nn.Embedding)]
    outputs = [part for n in range(before) for part in (layers[n].get_submodule(path), down_projection(model, n))]
    return [*embeddings, *outputs]


def refuse_norms_on_stream(model: PreTrainedModel) -> None:
    """Refuse a model in which the output of a sub-layer is not added to the stream as it is.

    Raises
    ------
    LaminaError
        If a norm stands behind the sub-layers or on the stream itself.
    """
    family = family_of(model)
    behind = any(getattr(layer, "post_feedforward_layernorm", None) is not None for layer in layers_of(model))
    if behind or family.stream_norm:
        raise _unfoldable(family, "has a norm between the MLP and the stream, which undoes what is folded into weights")


def _unfoldable(family: Family, reason: str) -> LaminaError:
    return LaminaError(
        f"the model family '{family.name}' {reason}. Use a recovery that acts on the stream "
        "itself: ghost or linearpatch."
    )


def _recognise(model: PreTrainedModel, config: PretrainedConfig) -> Family:
    """A family for a model that is not listed: its one module list with as many entries as the configuration says."""
    depth = getattr(config, "num_hidden_layers", None)
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth and depth
    ]
    if len(lists) != 1:
        raise LaminaError(
            f"the model family '{config.model_type}' is not known, and it has {len(lists)} module lists of "
            f"{depth} entries where one was expected ({', '.join(lists) or 'none'}). Add it to "
            f"src/lamina/models/families.py, or use one of: {', '.join(sorted(FAMILIES))}."
        )
    parent = lists[0].rpartition(".")[0]
    names = [f"{parent}.{name}" if parent else name for name in ("norm", "ln_f", "final_layernorm", "final_layer_norm")]
    return Family(
        name=config.model_type,
        layers=lists[0],
        final_norm=next((name for name in names if _find(model, name) is not None), None),
        embeddings=_name_of(model, model.get_input_embeddings()),
        head=_name_of(model, model.get_output_embeddings()),
        attention=None,
        mlp=(),
        projections=(),
    )


def _find(model: nn.Module, path: str) -> Any:
    """The sub-module at a dotted path, None where there is none."""
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return None
    return found


def _name_of(model: nn.Module, wanted: nn.Module | None) -> str:
    """Dotted path of a sub-module; empty if the model has none."""
    return next((name for name, module in model.named_modules() if module is wanted), "")


def known_families() -> Sequence[str]:
    """Names of the families whose sub-layers are known."""
    return tuple(sorted(FAMILIES))
