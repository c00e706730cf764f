"""Turns the configuration of a model into that of an edited model.

The rules hold for all families. They change entries that list layers, give their indices or count
them. They do not recognise everything (layers at every n-th index, for example). What they miss
shows when an export is loaded back and compared.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from lamina.errors import LaminaError

# Names under which configurations keep the number of layers.
_DEPTH = re.compile(
    r"num_hidden_layers|num_layers|n_layers?|num_blocks|(num_)?(decoder|encoder)_layers"
)
# Lists of tokens, classes or files. If such a list is as long as the model is deep, this is a
# coincidence.
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
# Lists of the indices of layers, and counts of those at the beginning.
_INDEX_LIST = re.compile(r".*(_layers|_layer_ids|_idxs?|_layer_indices)")
_LEADING_COUNT = re.compile(r"first_k_dense_replace|num_dense_layers|moe_layer_start_index")


def cut_config(config: PretrainedConfig, sources: Sequence[int], depth: int) -> None:
    """Turn the configuration of a model of `depth` layers into an edited model's, in place.

    sources: for each layer of the edited model, the index of its source layer.

    Raises LaminaError if the configuration only counts the leading layers of a kind, and these
    would not lead any more.
    """
    layer_settings = config.to_dict().get("per_layer_config") or {}
    if layer_settings:
        # While this is set, entries of single layers cannot be read.
        config.per_layer_config = None

    longer = _default_of_depth(config, depth + 1)
    _list_dense_layers(config, depth)
    for name, value in list(vars(config).items()):
        if isinstance(value, (list, tuple)):
            if value and not name.endswith(_NOT_PER_LAYER):
                setattr(config, name, _cut_list(name, value, sources, depth, longer))
        elif isinstance(value, int) and _LEADING_COUNT.fullmatch(name):
            setattr(config, name, _count_leading(name, [layer < value for layer in sources]))
        elif name == "moe_layer_end_index" and value is not None and value >= 0:
            n_leading = _count_leading(name, [layer <= value for layer in sources])
            setattr(config, name, n_leading - 1)
    # Heads that predict several tokens ahead come after the layers; transformers does not load
    # them.
    if getattr(config, "num_nextn_predict_layers", None):
        config.num_nextn_predict_layers = 0
    set_depth(config, len(sources))

    edited_settings: dict[int | str, dict[str, Any]] = {}
    for layer, settings in layer_settings.items():
        for position, source in enumerate(sources):
            if source == int(layer):
                edited_settings[position] = settings
    if edited_settings:
        config.per_layer_config = edited_settings


def _count_leading(name: str, are_leading: Sequence[bool]) -> int:
    """How many layers of the edited model are of the kind that comes first."""
    n_leading = sum(are_leading)
    if not all(are_leading[:n_leading]):
        raise LaminaError(
            f"`{name}` gives only the number of first layers that are of one kind, so a layer of "
            "this kind cannot run after one of the other kind. Edit layers of one kind only."
        )
    return n_leading


def _cut_list(
    name: str,
    value: Sequence[Any],
    sources: Sequence[int],
    depth: int,
    longer: PretrainedConfig | None,
) -> Sequence[Any]:
    """A list of a configuration, cut to the edited model's layers if it lists layers.

    longer: the default configuration of the same type for one more layer.
    """
    list_type: Any = type(value)
    if _INDEX_LIST.fullmatch(name) and _are_layer_indices(value, depth):
        return list_type(position for position, layer in enumerate(sources) if layer in value)

    longer_value = getattr(longer, name, None)
    has_own_length = isinstance(longer_value, (list, tuple)) and len(longer_value) == depth
    if len(value) == depth and not has_own_length:
        return list_type(value[layer] for layer in sources)
    if all(isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in value):
        return _cut_repetitions(value, sources, depth)
    return value


def _cut_repetitions(value: Sequence[Any], sources: Sequence[int], depth: int) -> Sequence[Any]:
    """Cut a list of [kinds, times] to the edited model; return any other list of pairs as it is."""
    kind_by_layer: list[Any] = []
    for layer_kinds, times in value:
        if not isinstance(layer_kinds, (list, tuple)) or type(times) is not int:
            return value
        for _ in range(times):
            kind_by_layer += layer_kinds
    if len(kind_by_layer) != depth:
        return value
    return [[[kind_by_layer[layer]], 1] for layer in sources]


def _are_layer_indices(value: Sequence[Any], depth: int) -> bool:
    """Whether a list holds indices of layers, in order, and not one flag for each layer."""
    if any(type(entry) is not int or not 0 <= entry < depth for entry in value):
        return False
    are_flags = len(value) == depth and set(value) <= {0, 1}
    return list(value) == sorted(set(value)) and not are_flags


def _default_of_depth(config: PretrainedConfig, depth: int) -> PretrainedConfig | None:
    """The default configuration of the same type for another depth.

    None if the type has no entry for its depth, or has other entries that must fit it. Then every
    list as long as the model is deep counts as a list of layers.
    """
    depth_names = [name for name in vars(config) if _DEPTH.fullmatch(name)]
    if not depth_names:
        return None
    config_class: Any = type(config)
    try:
        default: PretrainedConfig = config_class(**{depth_names[0]: depth})
    except (StrictDataclassError, TypeError, ValueError):
        return None
    return default


def _list_dense_layers(config: PretrainedConfig, depth: int) -> None:
    """List all layers without experts.

    The configuration has experts in every n-th layer, except for those in a list. Afterwards it has
    experts in every layer, except for those in a longer list.
    """
    step = getattr(config, "decoder_sparse_step", None)
    dense_layers = getattr(config, "mlp_only_layers", None)
    if isinstance(step, int) and step > 1 and dense_layers is not None:
        config.mlp_only_layers = [
            layer for layer in range(depth) if layer in dense_layers or (layer + 1) % step
        ]
        config.decoder_sparse_step = 1


def set_depth(config: PretrainedConfig, depth: int) -> None:
    """Set the number of layers under every name that the configuration has for it."""
    for name, value in list(vars(config).items()):
        if _DEPTH.fullmatch(name) and isinstance(value, int):
            setattr(config, name, depth)


def kinds_by_layer(config: PretrainedConfig, depth: int) -> list[int]:
    """For each layer, the first layer of its kind; 0 for all layers if all are alike.

    The lists and counts of a configuration distinguish kinds: full or sliding attention, with or
    without positions, dense or with experts.
    """
    settings_by_layer: list[dict[str, Any]] = []
    for layer in range(depth):
        single_layer = copy.deepcopy(config)
        cut_config(single_layer, [layer], depth)
        settings: dict[str, Any] = {}
        for name, value in vars(single_layer).items():
            if isinstance(value, (list, tuple)):
                settings[name] = list(value)
            elif _LEADING_COUNT.fullmatch(name):
                settings[name] = value
        settings["per_layer_config"] = single_layer.to_dict().get("per_layer_config")
        settings_by_layer.append(settings)
    return [settings_by_layer.index(settings) for settings in settings_by_layer]


def kinds_of(manifest: Mapping[str, Any]) -> list[int]:
    """The kinds of the layers of the model with this manifest, as from `kinds_by_layer`."""
    config: PretrainedConfig = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    return kinds_by_layer(config.get_text_config(decoder=True), manifest["n_layers"])


def shifts_kinds(kinds: Sequence[int], sources: Sequence[int]) -> bool:
    """Whether edits put a layer at an index where the base model has a layer of another kind.

    Programs that derive a layer's kind from its index then run another model.
    """
    edited_kinds = [kinds[layer] for layer in sources]
    return len(set(kinds)) > 1 and edited_kinds != list(kinds[: len(sources)])
