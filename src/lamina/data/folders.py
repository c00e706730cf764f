"""Reads data sets in folders: finds the files of a split, and reads one field of their rows.

A card (README.md) names files and splits as on the hub. Without one, file names determine splits
only if all of them name one: a file `steam-train.jsonl` among others is not a split. A `test.jsonl`
among others is one, and the folder is refused. Only the field that is asked for is read, so that
the types of other fields do not matter.
"""

import csv
import io
import json
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import metadata_load

from lamina.data.files import (
    LONGEST_MARK,
    decode_text,
    encoding_of,
    listed_values,
    shorten_value,
    surrogate_fault,
)
from lamina.errors import LaminaError
from lamina.store.yaml_errors import describe_yaml_error

_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "txt",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Files of a known kind that hold no data.
_NO_DATA = re.compile(
    r"(dataset_infos?|dataset_dict|state)\.json|(license|readme|notice|requirements).*\.txt", re.I
)
# A name that holds nothing but `*`, which stands for the word of a split, numbers, and words for a
# part of something.
_PART = r"(?:\d|of|data|set|split|part|shard)"
_SPLIT_ALONE = re.compile(rf"(?:{_PART}[-_. ]*)*\*(?:[-_. ]*{_PART})*(?:\.[a-z0-9]+)*")

_logger = logging.getLogger(__name__)


class _NamedSplit(NamedTuple):
    """What the name of a file says about its split."""

    split: str
    pattern: str
    """The path with `*` in place of the split."""
    says_nothing_else: bool
    """Whether the name holds nothing but the split, numbers, and words for a part."""


def find_files(folder: Path, name: str | None, split: str, where: str) -> list[Path]:
    """The files of a split, in the order of their names.

    name: One of the configurations in the card of the data set, if it has any.
    where: What messages begin with.

    Raises LaminaError if there are none; the message says which splits exist.
    """
    configurations = _read_configurations(folder / "README.md", where)
    if configurations:
        return _files_of_card(folder, configurations, name, split, where)
    if name is not None:
        raise LaminaError(
            f"{where}: it has no README.md that names a configuration '{name}'. Leave `name` out."
        )

    paths = _list_data_files(folder, where)
    named_splits = {path: _find_split(path.relative_to(folder)) for path in paths}
    split_by_path = {path: each.split for path, each in named_splits.items() if each is not None}
    unnamed_paths = [path for path in paths if path not in split_by_path]
    if unnamed_paths:
        return _files_without_splits(folder, named_splits, unnamed_paths[0], split, where)
    if split not in split_by_path.values():
        available = ", ".join(sorted(set(split_by_path.values())))
        raise LaminaError(
            f"{where}: its files are named after {available}, and none after '{split}'. Write one "
            "of these, or rename the files if these are not splits."
        )
    return [path for path in paths if split_by_path[path] == split]


def read_rows(file: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file with at least these fields; a row that lacks one has all its others."""
    kind = _kind(file)
    if kind == "parquet":
        yield from _parquet_rows(file, fields)
    elif kind == "arrow":
        yield from _arrow_rows(file, fields)
    elif kind == "txt":
        for line in _lines(file):
            yield {"text": line.rstrip("\r\n")}
    elif kind == "csv":
        csv.field_size_limit(sys.maxsize)  # a field is a document
        delimiter = "\t" if ".tsv" in file.name.lower() else ","
        yield from csv.DictReader(_lines(file), delimiter=delimiter)
    else:
        yield from _json_rows(file, fields)


def _read_configurations(card: Path, where: str) -> list[dict[str, Any]]:
    """The configurations in the card of a data set; none without a card."""
    if not card.is_file():
        return []
    try:
        metadata = metadata_load(card) or {}
    except yaml.MarkedYAMLError as error:
        block = card.read_text(encoding="utf-8").splitlines()[1:]
        fault = describe_yaml_error(error, block)
        raise LaminaError(f"{where}: its README.md, after the first `---`, {fault}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise LaminaError(f"{where}: its README.md cannot be read: {error}.") from error
    configurations = metadata.get("configs") or []
    if not isinstance(configurations, list):
        configurations = [configurations]
    for configuration in configurations:
        if not isinstance(configuration, dict):
            raise LaminaError(
                f"{where}: `configs` in its README.md holds {shorten_value(configuration)}. Write "
                "one `- config_name: NAME` for each configuration, with `data_files:`."
            )
    return configurations


def _files_of_card(
    folder: Path, configurations: list[dict[str, Any]], name: str | None, split: str, where: str
) -> list[Path]:
    """The files that a card names for a split of one of its configurations.

    Without a `name`, it is the default configuration, or the only one.
    """
    by_name = {str(each.get("config_name", "default")): each for each in configurations}
    if name is None:
        name = _default_configuration(by_name)
    if name not in by_name:
        raise LaminaError(
            f"{where}: its README.md names no configuration '{name}'. Available: {sorted(by_name)}."
        )
    patterns_by_split = _patterns_by_split(by_name[name].get("data_files") or [], where)
    if split not in patterns_by_split:
        available = sorted(patterns_by_split)
        raise LaminaError(
            f"{where}: its README.md names no split '{split}'. Available: {available}."
        )
    patterns = patterns_by_split[split]
    paths: set[Path] = set()
    for pattern in patterns:
        paths.update(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise LaminaError(
            f"{where}: its README.md names files of '{split}' that are not there: "
            f"{', '.join(patterns)}."
        )
    return sorted(paths)


def _default_configuration(by_name: dict[str, dict[str, Any]]) -> str | None:
    """The configuration that is used if none is named; None if that is unclear."""
    for name, configuration in by_name.items():
        if configuration.get("default") or name == "default":
            return name
    return next(iter(by_name)) if len(by_name) == 1 else None


def _patterns_by_split(data_files: Any, where: str) -> dict[str, list[str]]:
    """The paths of each split, from any form that `data_files` of a card may have."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    patterns_by_split: dict[str, list[str]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            entry = {"split": "train", "path": entry}
        if not {"split", "path"} <= entry.keys():
            raise LaminaError(
                f"{where}: `data_files` in its README.md holds {shorten_value(entry)}. Write "
                "`- split: NAME` with `path: FILE`."
            )
        patterns = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
        patterns_by_split.setdefault(str(entry["split"]), []).extend(map(str, patterns))
    return patterns_by_split


def _list_data_files(folder: Path, where: str) -> list[Path]:
    """All files of a folder without a card, which must be of one kind."""
    paths: list[Path] = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if _kind(path) and not is_hidden and not _NO_DATA.fullmatch(path.name):
            paths.append(path)
    if not paths:
        raise LaminaError(f"{where}: it holds no file of a known kind: {', '.join(_KINDS)}.")
    path_by_kind = {_kind(path): path for path in paths}
    if len(path_by_kind) > 1:
        first, second, *_ = path_by_kind.values()
        raise LaminaError(
            f"{where}: it holds files of several kinds, such as {first.name} and {second.name}. "
            "Put those of one kind into a folder."
        )
    return paths


def _find_split(path: Path) -> _NamedSplit | None:
    """The split that a path in a data set names, by its file or by a folder."""
    name = path.as_posix().lower()
    for word in re.finditer(r"[a-z]+", name):
        if word.group() in _SPLIT_WORDS:
            pattern = f"{name[: word.start()]}*{name[word.end() :]}"
            part = next(part for part in pattern.split("/") if "*" in part)
            says_nothing_else = _SPLIT_ALONE.fullmatch(part) is not None
            return _NamedSplit(_SPLIT_WORDS[word.group()], pattern, says_nothing_else)
    return None


def _files_without_splits(
    folder: Path,
    named_splits: dict[Path, _NamedSplit | None],
    unnamed_path: Path,
    split: str,
    where: str,
) -> list[Path]:
    """All files of a folder in which not every name has a split, so that no name counts as one.

    unnamed_path: A file whose name has no split.

    Raises LaminaError if a file is clearly of a split that is not for training. Its name then holds
    nothing but the split (`test.jsonl`, `test/part-1.jsonl`), or differs from another file's only
    in the split (`quiz_test.jsonl` next to `quiz_train.jsonl`). A lone `stress_test.jsonl` does not
    count.
    """
    splits_by_pattern: dict[str, set[str]] = {}
    for named in named_splits.values():
        if named is not None:
            splits_by_pattern.setdefault(named.pattern, set()).add(named.split)

    unnamed = unnamed_path.relative_to(folder)
    doubtful_names: list[str] = []
    for path, named in named_splits.items():
        if named is None or named.split == "train":
            continue
        name = path.relative_to(folder)
        if named.says_nothing_else or len(splits_by_pattern[named.pattern]) > 1:
            raise LaminaError(
                f"{where}: '{name}' is named after the split {named.split}, and '{unnamed}' after "
                "none, so it is unclear which files are for training. Put those into a folder of "
                "their own, or list the files of each split in its README.md (`configs:` with "
                "`data_files:`)."
            )
        doubtful_names.append(str(name))
    if split != "train":
        raise LaminaError(
            f"{where}: not all of its files are named after a split, so there is no '{split}'. "
            "Leave it out."
        )
    if doubtful_names:
        _logger.warning(
            "%s: all of its files are read, since %s is named after no split; so are: %s.",
            where,
            unnamed,
            ", ".join(doubtful_names),
        )
    return list(named_splits)


def _kind(path: Path) -> str | None:
    """How a file is read, by its name; None if it is not data."""
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _KINDS.get(name.suffix.lower()) if path.is_file() else None


def _parquet_rows(file: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(file) as table:
        names = table.schema_arrow.names
        columns = list(fields) if set(fields) <= set(names) else names
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()


def _arrow_rows(file: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    with pa.memory_map(str(file)) as source:
        for batch in _arrow_batches(source):
            if set(fields) <= set(batch.schema.names):
                batch = batch.select(list(fields))
            yield from batch.to_pylist()


def _arrow_batches(source: pa.NativeFile) -> Iterable[pa.RecordBatch]:
    """The batches of Arrow's file format, or of its stream format as in `datasets`' caches."""
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)
    return map(reader.get_batch, range(reader.num_record_batches))


def _json_rows(file: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    for location, row in _json_entries(file, fields[0]):
        if not isinstance(row, dict):
            raise LaminaError(f"{location}: {shorten_value(row)} is not an object with fields.")
        for field in fields:
            if fault := surrogate_fault(row.get(field)):
                raise LaminaError(f"{location}: {fault}")
        yield row


def _json_entries(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """The entries of a JSON file, each preceded by its location.

    They are one per line, in a list, or in an object that holds a list of objects.
    """
    numbered_lines = (
        (f"{file}, line {number}", line)
        for number, line in enumerate(_lines(file), 1)
        if line.strip()
    )
    first_lines = list(islice(numbered_lines, 2))
    if not first_lines:
        return
    all_lines = chain(first_lines, numbered_lines)
    if len(first_lines) == 2 and _is_object(first_lines[0][1]):
        for location, line in all_lines:
            yield location, _parse(line, location)
        return

    whole = _parse("".join(line for _, line in all_lines), str(file))
    entries = listed_values(whole, field)
    if entries is None:
        entries = [whole]
    for number, entry in enumerate(entries, 1):
        yield f"{file}, entry {number}", entry


def _is_object(line: str) -> bool:
    """Whether a line is a complete object, so that other lines are objects too."""
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _parse(text: str, location: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise LaminaError(f"{location}: not JSON ({error.msg}, column {error.colno}).") from error


def _lines(file: Path) -> Iterator[str]:
    """The lines of a text file, which may be compressed, with their line ends."""
    line_number = 1
    for chunk in _chunks(file):
        yield from io.StringIO(decode_text(chunk, str(file), line_number), newline="")
        line_number += chunk.count(b"\n")


def _chunks(file: Path) -> Iterator[bytes]:
    """The bytes of a text file line by line; in one piece if it is UTF-16.

    UTF-16 is decoded before it is split into lines.
    """
    try:
        with _open_bytes(file) as opened:
            chunk = opened.read(LONGEST_MARK)
            chunk += opened.readline() if encoding_of(chunk).startswith("utf-8") else opened.read()
            while chunk:
                yield chunk
                chunk = opened.readline()
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise LaminaError(
            f"{file} cannot be read: {error}. Restore the file: it is damaged, or its name promises "
            "another compression."
        ) from error


def _open_bytes(file: Path) -> Any:
    if file.suffix.lower() == ".zst":  # fsspec reads these only with another package
        return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))
    return fsspec.open(str(file), "rb", compression="infer")
