"""The configuration of a cut model. Rules that hold for all families cut what lists, numbers or counts layers.

Rules do not see everything (layers at every n-th place, for example). What they miss shows when an export is loaded
back and compared.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

# Names under which configurations keep how many layers there are.
_DEPTH = re.compile(
    r"num_hidden_layers|num_layers|n_layers?|num_blocks|(num_)?(decoder|encoder)_layers"
)
# Lists of tokens, classes or files. If such a list is as long as the model is deep, this is a coincidence.
_NOT_PER_LAYER = (
    "token_id",
    "token_ids",
    "tokens",
    "architectures",
    "id2label",
    "label2id",
    "section",
    "shape",
)
# Lists of the numbers of layers, and counts of those at the beginning.
_NUMBERS = re.compile(r".*(_layers|_layer_ids|_idxs?|_layer_indices)")
_LEADING = re.compile(r"first_k_dense_replace|num_dense_layers|moe_layer_start_index")


def cut(config: PretrainedConfig, kept: Sequence[int], depth: int) -> None:
    """Make the configuration of a model of `depth` layers that of a model of its `kept` layers, in place."""
    own = config.to_dict().get("per_layer_config") or {}
    if own:
        # While this is set, entries of single layers cannot be read.
        config.per_layer_config = None
    place = {layer: number for number, layer in enumerate(kept)}
    longer = _of_depth(config, depth + 1)
    _list_dense_layers(config, depth)
    for name, value in list(vars(config).items()):
        if isinstance(value, (list, tuple)) and value and not name.endswith(_NOT_PER_LAYER):
            other = getattr(longer, name, None)
            if _NUMBERS.fullmatch(name) and _are_numbers(value, depth):
                setattr(
                    config, name, type(value)(place[layer] for layer in value if layer in place)
                )
            elif len(value) == depth and not (
                isinstance(other, (list, tuple)) and len(other) == depth
            ):
                setattr(config, name, type(value)(value[layer] for layer in kept))
            elif all(isinstance(part, (list, tuple)) and len(part) == 2 for part in value):
                setattr(config, name, _counted(value, kept, depth))
        elif isinstance(value, int) and _LEADING.fullmatch(name):
            setattr(config, name, sum(layer < value for layer in kept))
        elif name == "moe_layer_end_index" and value is not None and value >= 0:
            setattr(config, name, sum(layer <= value for layer in kept) - 1)
    # Heads that predict several tokens ahead stand behind the layers; transformers does not load them.
    if getattr(config, "num_nextn_predict_layers", None):
        config.num_nextn_predict_layers = 0
    set_depth(config, len(kept))
    left: dict[int | str, dict[str, Any]] = {
        place[int(layer)]: settings for layer, settings in own.items() if int(layer) in place
    }
    if left:
        config.per_layer_config = left


def kinds(config: PretrainedConfig, depth: int) -> list[int]:
    """For each layer, the first of those that lists and counts of a configuration make equal to it; 0 if all are alike.

    Kinds are full or sliding attention, with or without positions, dense or of experts.
    """
    alone: list[dict[str, Any]] = []
    for layer in range(depth):
        only = copy.deepcopy(config)
        cut(only, [layer], depth)
        lists = {
            name: list(value)
            for name, value in vars(only).items()
            if isinstance(value, (list, tuple))
        }
        lists |= {name: [value] for name, value in vars(only).items() if _LEADING.fullmatch(name)}
        alone.append(lists | {"": only.to_dict().get("per_layer_config")})
    return [alone.index(settings) for settings in alone]


def kinds_of(manifest: Mapping[str, Any]) -> list[int]:
    """The `kinds` of the layers of the model with this manifest."""
    local = {"trust_remote_code": manifest["trust_remote_code"], "local_files_only": True}
    config: PretrainedConfig = AutoConfig.from_pretrained(manifest["path"], **local)
    return kinds(config.get_text_config(decoder=True), manifest["n_layers"])


def shifts(kinds: Sequence[int], kept: Sequence[int]) -> bool:
    """Whether layers that stay are of other kinds than the first layers of the base model, by their new numbers.

    Programs that tell a layer's kind from its number then run another model.
    """
    return [kinds[layer] for layer in kept] != list(kinds[: len(kept)])


def set_depth(config: PretrainedConfig, depth: int) -> None:
    """Set the number of layers under every name that the configuration has for it."""
    for name in [
        name
        for name, value in vars(config).items()
        if _DEPTH.fullmatch(name) and isinstance(value, int)
    ]:
        setattr(config, name, depth)


def _of_depth(config: PretrainedConfig, depth: int) -> PretrainedConfig | None:
    """The default configuration of the same type for another depth.

    None if the type has no entry for its depth, or has other entries that must fit it. Then every list as long as the
    model is deep counts as a list of layers.
    """
    name = next((name for name in vars(config) if _DEPTH.fullmatch(name)), None)
    if name is None:
        return None
    kind: Any = type(config)
    try:
        default: PretrainedConfig = kind(**{name: depth})
    except (StrictDataclassError, TypeError, ValueError):
        return None
    return default


def _are_numbers(value: Sequence[Any], depth: int) -> bool:
    """Whether a list holds numbers of layers, in order, and not one flag for each."""
    numbers = all(type(entry) is int and 0 <= entry < depth for entry in value)
    return (
        numbers
        and list(value) == sorted(set(value))
        and not (len(value) == depth and set(value) <= {0, 1})
    )


def _counted(value: Sequence[Any], kept: Sequence[int], depth: int) -> Sequence[Any]:
    """A list of [kinds, how often], cut to the layers that stay; any other list as it is."""
    if not all(isinstance(kinds, (list, tuple)) and type(times) is int for kinds, times in value):
        return value
    of_layer = [kind for kinds, times in value for _ in range(times) for kind in kinds]
    return [[[of_layer[layer]], 1] for layer in kept] if len(of_layer) == depth else value


def _list_dense_layers(config: PretrainedConfig, depth: int) -> None:
    """If experts stand in every n-th layer except a list of layers, write it as every layer except a longer list."""
    step, dense = (
        getattr(config, "decoder_sparse_step", None),
        getattr(config, "mlp_only_layers", None),
    )
    if isinstance(step, int) and step > 1 and dense is not None:
        config.mlp_only_layers = [
            layer for layer in range(depth) if layer in dense or (layer + 1) % step
        ]
        config.decoder_sparse_step = 1
