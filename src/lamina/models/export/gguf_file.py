"""A variant as a GGUF file: the base model's own file without the removed layers. What stays keeps its bits."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting, gguf
from lamina.models.dequantise import read_model
from lamina.models.export.check import check_export
from lamina.models.structure import layers_of, text_config

FILE = "model.gguf"
_DROPPED = ("general.size_label",)  # what names the size of the base model


def save(
    variant: PreTrainedModel, base: PreTrainedModel, kept: Sequence[int], source: Path, folder: Path
) -> None:
    """Write the layers `kept` of the GGUF file `source`, and load them back.

    Raises LaminaError if the file would not be the variant: programs that read it tell a layer's kind from its number.
    """
    if cutting.shifts(cutting.kinds(text_config(base), len(layers_of(base))), kept):
        raise LaminaError(
            f"layers of a '{text_config(base).model_type}' differ (full or sliding attention, RoPE bases, experts), a "
            "GGUF file does not say which layer is of which kind, and this cut shifts the pattern. Choose layers by a "
            "selector with strategy: block and periods: whole, or export a checkpoint (leave FORM out)."
        )
    folder.mkdir(parents=True)
    write(source, folder / FILE, kept)
    dtype = str(variant.dtype).removeprefix("torch.")
    check_export(variant, base, lambda: read_model(folder / FILE, dtype, str(source)))


def write(source: Path, target: Path, kept: Sequence[int]) -> None:
    """Copy a GGUF file without the layers that are not `kept`: blocks get new numbers, lists by layer are cut."""
    header = gguf.read_header(source, str(source))
    depth, _ = gguf.shape(source, str(source))
    settings = {
        name: _of_kept(name, setting, header.family, depth, kept)
        for name, setting in header.settings.items()
        if name not in _DROPPED and not name.startswith("split.")
    }
    new_numbers = {layer: number for number, layer in enumerate(kept)}
    tensors: list[tuple[str, gguf.StoredTensor]] = []
    for name, tensor in header.tensors.items():
        of_layer = gguf.LAYER.match(name)
        if of_layer is None:
            tensors.append((name, tensor))
        elif int(of_layer[1]) in new_numbers:
            number = new_numbers[int(of_layer[1])]
            tensors.append((f"blk.{number}.{name[of_layer.end() :]}", tensor))
    gguf.write(target, settings, tensors)


def _of_kept(
    name: str, setting: gguf.Setting, family: str, depth: int, kept: Sequence[int]
) -> gguf.Setting:
    """A setting of the model in which the layers `kept` are left."""
    if name == f"{family}.block_count":
        return gguf.with_value(setting, len(kept))
    by_layer = name.startswith(f"{family}.") and setting.is_list
    if not by_layer or not isinstance(setting.value, list) or len(setting.value) != depth:
        return setting
    return gguf.with_value(setting, [setting.value[layer] for layer in kept])
