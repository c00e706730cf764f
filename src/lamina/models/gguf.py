"""Read the headers of GGUF files and their shards, and write copies with other settings.

The module imports no torch, so the Snakefile can use it. It does not turn a file into a model:
`dequantise` does.

The package `gguf` turns every token of a vocabulary into several arrays. That takes a minute for
150,000 tokens and as many merges. This reader skips the lists that nobody asks for, so it reads a
header in a fraction of a second.

    header = gguf.read_header(Path("model.gguf"), "models.mine.source")
    header.settings["llama.block_count"].value
    gguf.read_texts(header.settings["tokenizer.ggml.tokens"])
    gguf.write_gguf(Path("copy.gguf"), header.settings, header.tensors.items())
"""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina.errors import LaminaError, located_at
from lamina.models.checkpoint import check_depth
from lamina.variant import Variant

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".gguf"
LAYER = re.compile(r"blk[.](\d+)[.]")  # the start of the names of a layer's tensors

_MAGIC = b"GGUF"
_VERSION = 3  # version 2 differs in nothing that is read here
_VERSIONS = (2, 3)
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})[.]gguf$")
# Kinds of values: their numbers in the format.
_TEXT, _LIST = 8, 9
_F32, _F16 = 0, 1  # number formats of tensors
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
# The limits of a header. The largest vocabularies have 262,144 tokens and a million merges.
_MOST_SETTINGS = 1 << 16
_MOST_TENSORS = 1 << 18
_MOST_TEXTS = 1 << 24
_MOST_DIMENSIONS = 8
_LONGEST_READ = 1 << 14  # numbers; a longer list is only counted. One number per layer fits.


@dataclass(frozen=True)
class Setting:
    """One setting of a header, and the bytes [start, end) of the file that hold its value.

    `value` is a number, a flag, a text, or a short list of numbers. For a list of texts or a long
    list of numbers, `value` is the length. `read_texts` and `read_numbers` read the members.
    """

    kind: int  # of the value, or of the members of a list
    is_list: bool
    value: Any
    file: Path
    start: int
    end: int
    replaced: bytes | None = None  # what a copy holds instead of the bytes of the file

    @property
    def encoded(self) -> bytes:
        """The bytes of the value as a file holds them, after those of its kind."""
        if self.replaced is not None:
            return self.replaced
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            value = stream.read(self.end - self.start)
        return struct.pack("<I", _LIST if self.is_list else self.kind) + value


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: its shape in torch's order, its number format and the position of its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: int
    file: Path
    start: int
    n_bytes: int

    @property
    def n_numbers(self) -> int:
        """How many numbers the tensor holds."""
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A model's settings and tensors in the order of its file; the tensors include all shards."""

    settings: dict[str, Setting] = field(default_factory=dict)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting; for a long list or a list of texts, its length."""
        return self.settings[name].value if name in self.settings else default

    @property
    def family(self) -> str:
        """The model's architecture, by llama.cpp's name."""
        return str(self.get("general.architecture"))


def is_gguf(source: str | Path) -> bool:
    """Whether a model's source is a GGUF file, by its name."""
    return str(source).endswith(SUFFIX)


def shard_files(path: Path) -> list[Path]:
    """The files of a model: `path`, and if it names a first shard, the other shards that exist."""
    shard_name = _SHARD.match(path.name)
    if shard_name is None or int(shard_name[2]) != 1:
        return [path]
    prefix = shard_name[1]
    count = shard_name[3]
    names = [f"{prefix}-{number:05d}-of-{count}{SUFFIX}" for number in range(2, int(count) + 1)]
    return [path, *(file for file in map(path.with_name, names) if file.is_file())]


def check_cut(variant: Variant, source: str | Path, kind: str, additions: str) -> None:
    """Refuse a variant that has more than the layers of a GGUF file.

    additions: What else it has, such as `layers of other models`; empty for nothing.

    Raises LaminaError, which says what to export instead.
    """
    convert = "run llama.cpp's convert_hf_to_gguf.py on its folder"
    if not is_gguf(source):
        why = f"the model is {source}, not a GGUF file. Leave --form out, and {convert}"
    elif (variant.repair, variant.healing) != ("none", "none"):
        why = (
            "its repair or healing changes weights, which would have to be quantised again. "
            f"Leave --form out, and, if the checkpoint is stock, {convert}; "
            "or export the variant whose repair and healing are none"
        )
    elif kind != "layer" or additions:
        why = f"a GGUF file has no place for {additions or 'half a layer'}. Leave --form out, and {convert}"
    else:
        return
    raise LaminaError(
        f"{variant}: the form gguf takes layers from a GGUF file and changes nothing else, "
        f"but {why}."
    )


def read_header(path: Path, where: str) -> Header:
    """The settings and tensors of a model in one GGUF file or in several shards.

    `path` is the file or the first shard. `where` is the configuration entry that messages name.

    Raises LaminaError if a file is damaged or cut off, if a shard is missing, or if `path` is a
    later shard.
    """
    header = _HeaderReader(path, where).read()
    count = header.get("split.count", 1)
    if count in (0, 1):
        return header
    if header.get("split.no", 0) != 0:
        raise LaminaError(
            f"{where}: {path} is shard {header.get('split.no') + 1} of {count}. "
            "Write the first one "
            f"(its name ends in -00001-of-{count:05d}.gguf), with all others next to it."
        )
    files = shard_files(path)
    if len(files) != count:
        expected = (
            path.name if _SHARD.match(path.name) else f"{path.stem}-00001-of-{count:05d}.gguf"
        )
        raise LaminaError(
            f"{where}: {path} is the first of {count} shards, "
            f"but {len(files) - 1} of the other {count - 1} are next to it. "
            f"Put all of them into one folder, with names such as {expected}, or merge them "
            "(llama-gguf-split --merge FIRST.gguf MERGED.gguf) and write the merged file."
        )
    tensors = dict(header.tensors)
    for number, file in enumerate(files[1:], 1):
        shard = _HeaderReader(file, where).read()
        if (shard.get("split.no"), shard.get("split.count")) != (number, count):
            raise LaminaError(
                f"{where}: {file} is not shard {number + 1} of {count} of {path}. "
                "Download it again."
            )
        repeated_names = sorted(tensors.keys() & shard.tensors.keys())
        if repeated_names:
            raise LaminaError(
                f"{where}: {file} holds {repeated_names[0]}, which another shard holds too. "
                "Download both again."
            )
        tensors |= shard.tensors
    stated_count = header.get("split.tensors.count", len(tensors))
    if stated_count != len(tensors):
        raise LaminaError(
            f"{where}: the {count} shards of {path} hold {len(tensors)} tensors, "
            f"but the first one says {stated_count}. Download them again."
        )
    return Header(header.settings, tensors)


def read_shape(path: Path, where: str) -> tuple[int, int | None]:
    """The number of decoder layers, and the longest context in tokens (None if not stated).

    Raises LaminaError as `read_header` does. It is also raised if the file does not state its
    number of layers, or stores other layers than it states.
    """
    header = read_header(path, where)
    key = f"{header.family}.block_count"
    layers = header.get(key)
    if not isinstance(layers, int):
        raise LaminaError(f"{where}: {path} does not say how many layers its model has ({key}).")
    with located_at(where):
        check_depth(path, key, layers)
    stored = {int(found[1]) for found in map(LAYER.match, header.tensors) if found}
    if stored and stored != {*range(layers)}:
        raise LaminaError(
            f"{where}: {path} stores {len(stored)} layers, the last one {max(stored)}, "
            f"but says `{key}: {layers}`. Download or convert it again."
        )
    return layers, header.get(f"{header.family}.context_length")


def stored_dtype(header: Header) -> str:
    """The number format, by torch's name, of a checkpoint with the numbers of a file.

    It is that of most numbers of the file if they are floating point numbers, and bfloat16 if they
    are quantised. Rounding to bfloat16 moves quantised numbers by less than quantising did.
    """
    n_numbers = Counter[int]()
    for tensor in header.tensors.values():
        n_numbers[tensor.kind] += tensor.n_numbers
    most_common = max(n_numbers, key=lambda kind: n_numbers[kind], default=_F32)
    return {_F32: "float32", _F16: "float16"}.get(most_common, "bfloat16")


def read_texts(setting: Setting) -> list[str]:
    """The texts of a list, such as the tokens of a vocabulary.

    Raises UnicodeDecodeError if one is not UTF-8.
    """
    texts: list[str] = []
    with setting.file.open("rb") as stream, map_bytes(stream) as data:
        position = setting.start + 12  # after the kind and the number of the members
        while position < setting.end:
            (length,) = struct.unpack_from("<Q", data, position)
            texts.append(data[position + 8 : position + 8 + length].decode("utf-8"))
            position += 8 + length
    return texts


def read_numbers(setting: Setting) -> list[Any]:
    """The numbers of a list of any length."""
    with setting.file.open("rb") as stream:
        stream.seek(setting.start + 12)
        content = stream.read(setting.end - setting.start - 12)
    size = struct.calcsize(f"<{_FORMATS[setting.kind]}")
    return list(struct.unpack(f"<{len(content) // size}{_FORMATS[setting.kind]}", content))


def read_floats(tensor: StoredTensor) -> "np.ndarray":
    """The numbers of a tensor that is stored as float32 or float16."""
    import numpy as np

    stored = np.memmap(
        tensor.file,
        dtype={_F32: "<f4", _F16: "<f2"}[tensor.kind],
        mode="r",
        offset=tensor.start,
        shape=tensor.shape,
    )
    return np.asarray(stored, dtype=np.float64)


def with_value(setting: Setting, value: Any) -> Setting:
    """The setting with another value of its kind: a number, or a list of numbers or texts."""
    if not isinstance(value, list):
        encoded = struct.pack(f"<I{_FORMATS[setting.kind]}", setting.kind, value)
        return replace(setting, is_list=False, value=value, replaced=encoded)
    if setting.kind == _TEXT:
        texts = [text.encode() for text in value]
        members = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    else:
        members = struct.pack(f"<{len(value)}{_FORMATS[setting.kind]}", *value)
    encoded = struct.pack("<IIQ", _LIST, setting.kind, len(value)) + members
    return replace(setting, is_list=True, value=value, replaced=encoded)


def write_gguf(
    path: Path, settings: Mapping[str, Setting], tensors: Iterable[tuple[str, StoredTensor]]
) -> None:
    """Write a GGUF file of these settings and tensors. The bytes of the tensors are copied.

    `tensors` pairs each name in the new file with a tensor of an existing file.
    """
    named_tensors = list(tensors)
    alignment = settings["general.alignment"].value if "general.alignment" in settings else 32
    with path.open("wb") as target:
        target.write(_MAGIC)
        target.write(struct.pack("<IQQ", _VERSION, len(named_tensors), len(settings)))
        for name, setting in settings.items():
            target.write(_encode_text(name) + setting.encoded)
        offset = 0
        for name, tensor in named_tensors:
            dimensions = tuple(reversed(tensor.shape))
            target.write(_encode_text(name))
            target.write(struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
            target.write(struct.pack("<IQ", tensor.kind, offset))
            offset += tensor.n_bytes + -tensor.n_bytes % alignment
        for _, tensor in named_tensors:
            target.write(bytes(-target.tell() % alignment))
            with tensor.file.open("rb") as source:
                source.seek(tensor.start)
                _copy_bytes(source, target, tensor.n_bytes)
        target.write(bytes(-target.tell() % alignment))


def _copy_bytes(source: Any, target: Any, n_bytes: int) -> None:
    while n_bytes:
        piece = source.read(min(n_bytes, 1 << 24))
        if not piece:
            raise LaminaError(f"{source.name} became shorter while it was read. Start again.")
        target.write(piece)
        n_bytes -= len(piece)


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def map_bytes(stream: Any) -> mmap.mmap:
    """A file's bytes, which are read from the disk on access."""
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


class _HeaderReader:
    """Reads the header of one file. It checks every length against the size of the file."""

    def __init__(self, path: Path, where: str) -> None:
        self.path = path
        self.where = where
        self.position = 0

    def read(self) -> Header:
        if self.path.stat().st_size < 24:
            raise self._damaged("is too short for a GGUF file")
        with self.path.open("rb") as stream, map_bytes(stream) as self.data:
            return self._read_header()

    def _read_header(self) -> Header:
        if self.data[:4] != _MAGIC:
            raise self._damaged("does not begin with the letters GGUF")
        self.position = 4
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in _VERSIONS:
                raise LaminaError(
                    f"{self.where}: {self.path} is for big-endian machines. "
                    "Convert it with gguf-convert-endian of the package gguf."
                )
            raise LaminaError(
                f"{self.where}: {self.path} has version {version} of the format, "
                "but only versions 2 and 3 are read. Convert it again with a current llama.cpp."
            )
        n_tensors = self._count("tensors", _MOST_TENSORS)
        n_settings = self._count("settings", _MOST_SETTINGS)
        settings: dict[str, Setting] = {}
        for _ in range(n_settings):
            name = self._text("the name of a setting")
            if name in settings:
                raise self._damaged(f"has the setting '{name}' twice")
            settings[name] = self._setting(name)
        described = self._describe_tensors(n_tensors)
        alignment = settings["general.alignment"].value if "general.alignment" in settings else 32
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(
                f"says `general.alignment: {alignment}`, which is not a power of two"
            )
        data_start = self.position + -self.position % alignment
        tensors = {
            name: self._locate(name, shape, kind, data_start + offset)
            for name, (shape, kind, offset) in described.items()
        }
        return Header(settings, tensors)

    def _setting(self, name: str) -> Setting:
        kind = self._number("I")
        start = self.position
        is_list = kind == _LIST
        if is_list:
            kind = self._number("I")
            value = self._list(name, kind)
        elif kind == _TEXT:
            value = self._text(f"the text of '{name}'")
        else:
            value = self._number(self._format(name, kind))
        return Setting(kind, is_list, value, self.path, start, self.position)

    def _list(self, name: str, kind: int) -> Any:
        """Skip a list. Return its numbers if they are few, otherwise the number of its members."""
        if kind == _TEXT:
            count = self._count(f"texts in '{name}'", _MOST_TEXTS)
            self._skip_texts(count, name)
            return count
        letter = self._format(name, kind)
        count = self._number("Q")
        start = self.position
        self._skip(count * struct.calcsize(f"<{letter}"), f"the list '{name}'")
        if count > _LONGEST_READ:
            return count
        return list(struct.unpack_from(f"<{count}{letter}", self.data, start))

    def _skip_texts(self, count: int, name: str) -> None:
        """Skip the texts of a list. The loop runs a million times, so it makes few calls."""
        read_length = struct.Struct("<Q").unpack_from
        data = self.data
        end = len(data) - 8
        position = self.position
        for _ in range(count):
            if position > end:
                break
            position += 8 + read_length(data, position)[0]
        else:
            if position <= len(data):
                self.position = position
                return
        raise self._damaged(f"ends within its header: '{name}' would be a list of {count} texts")

    def _describe_tensors(self, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """The shape, number format and offset of each tensor, by its name."""
        described: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._text("the name of a tensor")
            if name in described:
                raise self._damaged(f"has the tensor '{name}' twice")
            n_dimensions = self._number("I")
            if n_dimensions > _MOST_DIMENSIONS:
                raise self._damaged(f"gives the tensor '{name}' {n_dimensions} dimensions")
            dimensions = [self._number("Q") for _ in range(n_dimensions)]
            kind = self._number("I")
            described[name] = (tuple(reversed(dimensions)), kind, self._number("Q"))
        return described

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> StoredTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        formats = {each.value: each for each in GGMLQuantizationType}
        if kind not in formats:
            raise LaminaError(
                f"{self.where}: {self.path} holds {name} in the number format {kind}, "
                "which the package gguf does not know. "
                "Use a file in another format (such as Q4_K_M), or quantise the model again."
            )
        block_numbers, block_bytes = GGML_QUANT_SIZES[formats[kind]]
        if shape and shape[-1] % block_numbers:
            raise self._damaged(
                f"holds {name} in rows of {shape[-1]} numbers, "
                f"but its format needs blocks of {block_numbers}"
            )
        n_bytes = prod(shape) // block_numbers * block_bytes
        if start + n_bytes > len(self.data):
            raise self._damaged(
                f"ends before its tensors do: {name} needs {start + n_bytes} bytes, "
                f"but the file has {len(self.data)}"
            )
        return StoredTensor(name, shape, kind, self.path, start, n_bytes)

    def _format(self, name: str, kind: int) -> str:
        if kind not in _FORMATS:
            raise self._damaged(f"has a value of the unknown type {kind} under '{name}'")
        return _FORMATS[kind]

    def _number(self, letter: str) -> Any:
        size = struct.calcsize(f"<{letter}")
        if self.position + size > len(self.data):
            raise self._damaged("ends within its header")
        (number,) = struct.unpack_from(f"<{letter}", self.data, self.position)
        self.position += size
        return number

    def _count(self, what: str, most: int) -> int:
        count: int = self._number("Q")
        if count > most:
            raise self._damaged(f"claims to have {count} {what}")
        return count

    def _text(self, what: str) -> str:
        length = self._number("Q")
        start = self.position
        self._skip(length, what)
        return self.data[start : self.position].decode("utf-8", errors="replace")

    def _skip(self, n_bytes: int, what: str) -> None:
        if n_bytes > len(self.data) - self.position:
            raise self._damaged(f"ends within its header: {what} would take {n_bytes} bytes")
        self.position += n_bytes

    def _damaged(self, why: str) -> LaminaError:
        return LaminaError(
            f"{self.where}: {self.path} is not a complete GGUF file: "
            f"at byte {self.position} it {why}. "
            "Download it again, or convert the model again."
        )
