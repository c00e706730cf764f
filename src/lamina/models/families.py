"""What a decoder looks like, family by family: where its layers, norms, embeddings and sub-layers are.

Only names and structure live here. A family that is not listed is recognised by its one list of layers, and can then
lose whole layers but no sub-layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError


@dataclass(frozen=True)
class Family:
    """Dotted paths from the model, and names inside one layer.

    Attributes
    ----------
    layers, final_norm, embeddings, head : paths of the layer list, the norm after it (None if the family has none),
        the token embeddings and the output projection.
    attention, mlp : sub-module names inside a layer. `mlp` may be several names where the layer holds the projections
        itself. None where the sub-layers of the family are not known.
    projections : names of the MLP's linear maps inside `mlp`, what LoRA adapts.
    transposed : the projections store their weight as (in, out), as GPT-2's Conv1D does.
    residual_inside : the sub-layer adds the residual itself, given as its second argument.
    stream_norm : a norm stands on the residual stream itself, after the sum, so that a layer without its sub-layers is
        not the identity.
    """

    name: str
    layers: str
    final_norm: str | None
    embeddings: str
    head: str
    attention: str | None
    mlp: tuple[str, ...]
    projections: tuple[str, ...]
    transposed: bool = False
    residual_inside: bool = False
    stream_norm: bool = False


_LLAMA = Family(
    name="llama",
    layers="model.layers",
    final_norm="model.norm",
    embeddings="model.embed_tokens",
    head="lm_head",
    attention="self_attn",
    mlp=("mlp",),
    projections=("gate_proj", "up_proj", "down_proj"),
)
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2", "bitnet")

_BLOOM = Family(
    name="bloom",
    layers="transformer.h",
    final_norm="transformer.ln_f",
    embeddings="transformer.word_embeddings",
    head="lm_head",
    attention="self_attention",
    mlp=("mlp",),
    projections=("dense_h_to_4h", "dense_4h_to_h"),
    residual_inside=True,
)

FAMILIES: dict[str, Family] = {
    **{name: replace(_LLAMA, name=name) for name in _LLAMA_LIKE},
    "phi3": replace(_LLAMA, name="phi3", projections=("gate_up_proj", "down_proj")),
    # The experts are stacked parameters, not linear modules, which LoRA cannot wrap by name.
    "mixtral": replace(_LLAMA, name="mixtral", projections=()),
    "gpt_neox": Family(
        name="gpt_neox",
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        embeddings="gpt_neox.embed_in",
        head="embed_out",
        attention="attention",
        mlp=("mlp",),
        projections=("dense_h_to_4h", "dense_4h_to_h"),
    ),
    "gpt2": Family(
        name="gpt2",
        layers="transformer.h",
        final_norm="transformer.ln_f",
        embeddings="transformer.wte",
        head="lm_head",
        attention="attn",
        mlp=("mlp",),
        projections=("c_fc", "c_proj"),
        transposed=True,
    ),
    "opt": Family(
        name="opt",
        layers="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        embeddings="model.decoder.embed_tokens",
        head="lm_head",
        attention="self_attn",
        mlp=("fc1", "fc2"),
        projections=("fc1", "fc2"),
    ),
    "bloom": _BLOOM,
    "falcon": replace(_BLOOM, name="falcon", residual_inside=False),
}


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


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The sub-module at a dotted path, which must exist."""
    return model.get_submodule(path)


def known_families() -> Sequence[str]:
    """Names of the families whose sub-layers are known."""
    return tuple(sorted(FAMILIES))
