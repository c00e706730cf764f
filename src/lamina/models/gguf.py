"""What a GGUF file says of its model, read by the package `gguf`; no torch, so that the Snakefile can ask."""

from functools import cache
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError

SUFFIX = ".gguf"


def is_gguf(source: str | Path) -> bool:
    """Whether a model's source is a GGUF file, by its name."""
    return str(source).endswith(SUFFIX)


def read(path: Path, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Settings in the order of the file (for a list, its length), and the numbers in each tensor by its name.

    `where` is the entry that messages name.

    Raises
    ------
    LaminaError
        If it is no GGUF file, is cut off, or has a version that is not known.
    """
    from gguf import GGUFReader, GGUFValueType

    try:
        reader = GGUFReader(path)
        settings = {
            name: len(field.data) if field.types[0] == GGUFValueType.ARRAY else field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")  # the reader's own, of the file's head
        }
        return settings, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError) as error:
        raise LaminaError(
            f"{where}: {path} is not a complete GGUF file ({error}). Download or convert it again."
        ) from error


def shape(path: Path, where: str) -> tuple[int, int | None]:
    """Decoder layers, and the longest context in tokens (None if the file does not say).

    Raises
    ------
    LaminaError
        As `read`, or if the file does not say how many layers there are.
    """
    layers, context, key = _shape(path, where, path.stat().st_mtime_ns)
    if not isinstance(layers, int):
        raise LaminaError(f"{where}: {path} does not say how many layers its model has ({key}).")
    return layers, context


@cache
def _shape(path: Path, where: str, written: int) -> tuple[Any, int | None, str]:
    """Reading takes seconds with a large vocabulary, and a configuration asks twice."""
    settings, _ = read(path, where)
    key = f"{settings.get('general.architecture')}.block_count"
    return settings.get(key), settings.get(key.replace("block_count", "context_length")), key
