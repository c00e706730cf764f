"""What a GGUF file says of its model, read by the package `gguf`; no torch, so that the Snakefile can ask."""

import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at
from lamina.models.checkpoint import check_depth, implausible
from lamina.study.variant import Variant

SUFFIX = ".gguf"
LAYER = re.compile(r"blk[.](\d+)[.]")  # begins the names of a layer's tensors
_TEXT, _LIST = 8, 9  # kinds of values; the others have these bytes
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST = 2_000_000  # entries of a list, settings, tensors: several times the largest vocabulary


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
        what = "layers of other models" if replaced else f"layers without their {kind}"
        why = f"a GGUF file has no place for {what}. Leave FORM out, and {convert}"
    else:
        return
    raise LaminaError(f"{variant}: FORM=gguf takes layers out of a GGUF file and changes nothing else, and {why}.")


def read(path: Path, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Settings in the order of the file (for a list, its length), and the numbers in each tensor by its name.

    `where` is the entry that messages name.

    Raises LaminaError if it is no GGUF file, is cut off, or has a version that is not known.
    """
    from gguf import GGUFReader, GGUFValueType

    try:
        with at(where):
            _check_lengths(path)
        reader = GGUFReader(path)
        settings = {
            name: len(field.data) if field.types[0] == GGUFValueType.ARRAY else field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")  # the reader's own, of the file's head
        }
        return settings, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        why = "it ends before its tensors do" if "reshape" in str(error) else error
        raise LaminaError(
            f"{where}: {path} is not a complete GGUF file ({why}). Download or convert it again."
        ) from error


def _check_lengths(path: Path) -> None:
    """Refuse a header whose texts, lists and tensors are more than the file can hold or any model has.

    The reader trusts these numbers, and would take all time or memory.
    """
    size = path.stat().st_size
    with path.open("rb") as file:

        def number(form: str) -> int:
            return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

        def skip(count: int, width: int, what: str) -> None:
            if count * width > size - file.tell() or (width > 1 and count > _MOST):
                raise implausible(path, f"{what} {count}")
            file.seek(count * width, 1)

        def skip_value(kind: int) -> None:
            if kind == _TEXT:
                skip(number("<Q"), 1, "a text has a length of")
            elif kind == _LIST:
                inner, count = number("<I"), number("<Q")
                if count > min(_MOST, size):
                    raise implausible(path, f"a list has a length of {count}")
                for _ in range(count if inner in (_TEXT, _LIST) else 0):
                    skip_value(inner)
                skip(count if inner not in (_TEXT, _LIST) else 0, _WIDTHS.get(inner, 1), "a list has a length of")
            else:
                skip(1, _WIDTHS[kind], "the number of values is")

        if file.read(4) != b"GGUF":
            raise ValueError("it does not begin with these letters")
        file.seek(8)  # behind the version, which the reader checks
        tensors, settings = number("<Q"), number("<Q")
        for count, what in ((tensors, "tensors"), (settings, "settings")):
            if count > min(_MOST // 4, size):
                raise implausible(path, f"it has {count} {what}")
        for _ in range(settings):
            skip(number("<Q"), 1, "a name has a length of")
            skip_value(number("<I"))
        for _ in range(tensors):
            skip(number("<Q"), 1, "a name has a length of")
            skip(number("<I"), 8, "the number of dimensions is")
            skip(12, 1, "the place of a tensor is")


def shape(path: Path, where: str) -> tuple[int, int | None]:
    """Decoder layers, and the longest context in tokens (None if the file does not say).

    Raises LaminaError as `read` does, or if the file does not say how many layers there are, or stores others.
    """
    layers, context, key, stored = _shape(path, where, path.stat().st_mtime_ns)
    if not isinstance(layers, int):
        raise LaminaError(f"{where}: {path} does not say how many layers its model has ({key}).")
    with at(where):
        check_depth(path, key, layers)
    if stored and stored != {*range(layers)}:
        raise LaminaError(
            f"{where}: {path} stores {len(stored)} layers, the last one {max(stored)}, and says `{key}: {layers}`. "
            "Download or convert it again."
        )
    return layers, context


@cache
def _shape(path: Path, where: str, written: int) -> tuple[Any, int | None, str, set[int]]:
    """Reading takes seconds with a large vocabulary, and a configuration asks twice."""
    settings, sizes = read(path, where)
    stored = {int(found[1]) for found in map(LAYER.match, sizes) if found}
    key = f"{settings.get('general.architecture')}.block_count"
    return settings.get(key), settings.get(key.replace("block_count", "context_length")), key, stored
