"""What a GGUF file says of its model, read by the package `gguf`; no torch, so that the Snakefile can ask."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at, within
from lamina.models.checkpoint import check_depth
from lamina.study.variant import Variant

SUFFIX = ".gguf"
LAYER = re.compile(r"blk[.](\d+)[.]")  # begins the names of a layer's tensors


def is_gguf(source: str | Path) -> bool:
    """Whether a model's source is a GGUF file, by its name."""
    return str(source).endswith(SUFFIX)


def check_cut(variant: Variant, source: str | Path, kind: str, replaced: bool) -> None:
    """Refuse a variant that is no GGUF file without some of its layers. `replaced` is whether donors give layers.

    Raises LaminaError, which says what to export instead.
    """
    convert = "run llama.cpp's convert_hf_to_gguf.py on its folder"
    if not is_gguf(source):
        why = f"the model is {source}, which is no GGUF file. Leave FORM out, and {convert}"
    elif (variant.repair, variant.healing) != ("none", "none"):
        why = (
            "its repair or healing changes numbers, which would have to be quantised anew. Leave FORM out, and, if the "
            f"checkpoint is stock, {convert}; or export the variant whose repair and healing are none"
        )
    elif kind != "layer" or replaced:
        what = "layers of other models" if replaced else "half a layer"
        why = f"a GGUF file has no place for {what}. Leave FORM out, and {convert}"
    else:
        return
    raise LaminaError(
        f"{variant}: FORM=gguf takes layers out of a GGUF file and changes nothing else, and {why}."
    )


def read(path: Path, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Settings in the order of the file (for a list, its length), and the numbers in each tensor by its name.

    `where` is the entry that messages name.

    Raises LaminaError if it is no GGUF file, is cut off, or has a version that is not known.
    """
    return _read(path, where, path.stat().st_mtime_ns)


@cache
def _read(path: Path, where: str, written: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Reading takes seconds with a large vocabulary, and is asked for twice."""
    from gguf import GGUFReader, GGUFValueType

    try:
        # The reader trusts every length that the header gives.
        with within(f"{where}: the header of {path}"):
            reader = GGUFReader(path)
            settings = {
                name: len(field.data) if field.types[0] == GGUFValueType.ARRAY else field.contents()
                for name, field in reader.fields.items()
                if not name.startswith("GGUF.")  # the reader's own, of the file's head
            }
            return settings, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        why = "it ends before its tensors do" if "reshape" in str(error) else error
        raise LaminaError(
            f"{where}: {path} is not a complete GGUF file ({why}). Download or convert it again."
        ) from error


def shape(path: Path, where: str) -> tuple[int, int | None]:
    """Decoder layers, and the longest context in tokens (None if the file does not say).

    Raises LaminaError as `read` does, or if the file does not say how many layers there are, or stores others.
    """
    settings, sizes = read(path, where)
    family = settings.get("general.architecture")
    key = f"{family}.block_count"
    layers = settings.get(key)
    if not isinstance(layers, int):
        raise LaminaError(f"{where}: {path} does not say how many layers its model has ({key}).")
    with at(where):
        check_depth(path, key, layers)
    stored = {int(found[1]) for found in map(LAYER.match, sizes) if found}
    if stored and stored != {*range(layers)}:
        raise LaminaError(
            f"{where}: {path} stores {len(stored)} layers, the last one {max(stored)}, and says `{key}: {layers}`. "
            "Download or convert it again."
        )
    return layers, settings.get(f"{family}.context_length")
