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
# What names the size of the base model.
_DROPPED = ("general.size_label", "general.architecture")  # the writer adds the second one itself


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
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    depth, _ = gguf.shape(source, str(source))
    reader, place = GGUFReader(source), {layer: number for number, layer in enumerate(kept)}
    family = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, family, endianess=reader.endianess)
    writer.data_alignment = reader.alignment
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in _DROPPED:
            continue
        kind, value = field.types[0], field.contents()
        if kind == GGUFValueType.ARRAY:
            if name.startswith(f"{family}.") and len(value) == depth:
                value = [value[layer] for layer in kept]
            if len(value):  # an empty list cannot be written, and says nothing
                writer.add_key_value(name, value, kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(
                name, len(kept) if name == f"{family}.block_count" else value, kind
            )
    tensors = []
    for tensor in reader.tensors:
        layer = gguf.LAYER.match(tensor.name)
        number = place.get(int(layer[1])) if layer else None
        if layer and number is None:
            continue
        name = f"blk.{number}.{tensor.name[layer.end() :]}" if layer else tensor.name
        writer.add_tensor_info(
            name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
        )
        tensors.append(tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data, tensor_endianess=reader.endianess)
    writer.close()
