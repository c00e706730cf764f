"""Writes a variant as a GGUF file, from the layers of the base model's own file.

The layers keep their quantised bits. A layer that runs again is copied.
"""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting, gguf
from lamina.models.dequantise import read_model
from lamina.models.export.check import check_export
from lamina.models.structure import layers_of, text_config

FILE = "model.gguf"
_SIZE_LABEL = "general.size_label"  # names the size of the base model


def save_gguf(
    variant: PreTrainedModel,
    base: PreTrainedModel,
    layers: Sequence[int],
    source: Path,
    folder: Path,
) -> None:
    """Write these layers of the GGUF file `source`, and load them back.

    Raises LaminaError if the file would not be the variant: programs that read it derive a layer's
    kind from its index.
    """
    base_config = text_config(base)
    layer_kinds = cutting.kinds_by_layer(base_config, len(layers_of(base)))
    if cutting.shifts_kinds(layer_kinds, layers):
        raise LaminaError(
            f"layers of a '{base_config.model_type}' differ (full or sliding attention, RoPE "
            "bases, experts), a GGUF file does not say which layer is of which kind, and this cut "
            "shifts the pattern. Choose layers by a selector with strategy: block and periods: "
            "whole, or export a checkpoint (leave FORM out)."
        )
    folder.mkdir(parents=True)
    copy_layers(source, folder / FILE, layers)
    dtype = str(variant.dtype).removeprefix("torch.")
    check_export(variant, base, lambda: read_model(folder / FILE, dtype, str(source)))


def copy_layers(source: Path, target: Path, layers: Sequence[int]) -> None:
    """Copy a GGUF file with only these layers, in this order.

    Their tensors are renumbered, and lists with an entry per layer are cut.
    """
    header = gguf.read_header(source, str(source))
    n_layers, _ = gguf.read_shape(source, str(source))
    settings: dict[str, gguf.Setting] = {}
    for name, setting in header.settings.items():
        if name != _SIZE_LABEL and not name.startswith("split."):
            settings[name] = _cut_setting(name, setting, header.family, n_layers, layers)
    gguf.write_gguf(target, settings, _select_tensors(header, layers))


def _select_tensors(
    header: gguf.Header, layers: Sequence[int]
) -> list[tuple[str, gguf.StoredTensor]]:
    """The tensors outside of layers, and those of these layers under their new names."""
    tensors: list[tuple[str, gguf.StoredTensor]] = []
    for name, tensor in header.tensors.items():
        match = gguf.LAYER.match(name)
        if match is None:
            tensors.append((name, tensor))
            continue
        name_in_layer = name[match.end() :]
        for index, layer in enumerate(layers):
            if layer == int(match[1]):
                tensors.append((f"blk.{index}.{name_in_layer}", tensor))
    return tensors


def _cut_setting(
    name: str, setting: gguf.Setting, family: str, n_layers: int, layers: Sequence[int]
) -> gguf.Setting:
    """A setting of the header for a model of only these layers, in this order."""
    if name == f"{family}.block_count":
        return gguf.with_value(setting, len(layers))
    if not name.startswith(f"{family}.") or not setting.is_list:
        return setting
    if not isinstance(setting.value, list) or len(setting.value) != n_layers:
        return setting
    return gguf.with_value(setting, [setting.value[layer] for layer in layers])
