"""Data sets in folders: which files belong to a split, and one field of their rows.

A card (README.md) names files and splits as on the hub. Without one, file names say splits only if all of them do: a
file `steam-train.jsonl` among others is no split. A `test.jsonl` among others is one, and the folder is refused. Only
the field that is asked for is read, so that the types of other fields do not matter.
"""

import csv
import io
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import metadata_load

from lamina.data.files import (
    LONGEST_MARK,
    decode,
    encoding_of,
    listed_values,
    shown,
    surrogate_fault,
)
from lamina.errors import LaminaError

_WORDS = {
    "training": "train",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "testing": "test",
}
_WORDS |= {"eval": "test", "evaluation": "test"} | {
    name: name for name in ("train", "validation", "test")
}
_KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_KINDS |= {".csv": "csv", ".tsv": "csv", ".txt": "txt"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_NO_DATA = re.compile(
    r"(dataset_infos?|dataset_dict|state)\.json|(license|readme|notice|requirements).*\.txt", re.I
)
# A name in which `*` stands for the split: only numbers and words for a part of something are beside it.
_PART = r"(?:\d|of|data|set|split|part|shard)"
_NOTHING_ELSE = re.compile(rf"(?:{_PART}[-_. ]*)*\*(?:[-_. ]*{_PART})*(?:\.[a-z0-9]+)*")

_logger = logging.getLogger(__name__)


class _NamedSplit(NamedTuple):
    """The split that the name of a file says, the name with `*` in its place, and whether that says nothing else."""

    split: str
    rest: str
    says_nothing_else: bool


def files(folder: Path, name: str | None, split: str, where: str) -> list[Path]:
    """The files of a split, in the order of their names; `name` is one of the card's configurations.

    `where` begins messages.

    Raises LaminaError if there are none; the message says what there is.
    """
    card = folder / "README.md"
    configurations = (metadata_load(card) or {}).get("configs") if card.is_file() else None
    if configurations:
        return _of_card(folder, configurations, name, split, where)
    if name is not None:
        raise LaminaError(
            f"{where}: it has no README.md that names a configuration '{name}'. Leave `name` out."
        )
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if _kind(path) and not _NO_DATA.fullmatch(path.name)
    ]
    found = [
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise LaminaError(f"{where}: it holds no file of a known kind: {', '.join(_KINDS)}.")
    one, *others = {_kind(path): path for path in found}.values()
    if others:
        raise LaminaError(
            f"{where}: it holds files of several kinds, such as {one.name} and {others[0].name}. Put those of one kind "
            "into a folder."
        )
    named = {path: _named_split(path.relative_to(folder)) for path in found}
    unnamed = [path for path in found if named[path] is None]
    if unnamed:
        return _of_no_split(folder, named, unnamed[0], split, where)
    splits = {path: each.split for path, each in named.items() if each is not None}
    if split not in splits.values():
        available = ", ".join(sorted(set(splits.values())))
        raise LaminaError(
            f"{where}: its files are named after {available}, and none after '{split}'. Name them otherwise if they "
            "are no splits."
        )
    return [path for path in found if splits[path] == split]


def _of_no_split(
    folder: Path, named: dict[Path, _NamedSplit | None], unnamed: Path, split: str, where: str
) -> list[Path]:
    """All files of a folder in which `unnamed` is named after no split, so that the words in other names say nothing.

    Raises LaminaError if one of the others is a split all the same, and not for training: its name says nothing else
    (`test.jsonl`, `test/part-1.jsonl`), or is that of a file of another split but for the word (`quiz_test.jsonl`
    beside `quiz_train.jsonl`). A lone `stress_test.jsonl` is none.
    """
    splits_by_rest: dict[str, set[str]] = {}
    for each in named.values():
        if each is not None:
            splits_by_rest.setdefault(each.rest, set()).add(each.split)
    doubtful = []
    for path, each in named.items():
        if each is None or each.split == "train":
            continue
        name = path.relative_to(folder)
        if each.says_nothing_else or len(splits_by_rest[each.rest]) > 1:
            raise LaminaError(
                f"{where}: '{name}' is named after the split {each.split}, and '{unnamed.relative_to(folder)}' after "
                "none, so it is not known which files are for training. Put those into a folder of their own, or "
                "name the files of each split in its README.md (`configs:` with `data_files:`)."
            )
        doubtful.append(str(name))
    if split != "train":
        raise LaminaError(
            f"{where}: not all of its files are named after a split, so there is no '{split}'. Leave it out."
        )
    if doubtful:
        _logger.warning(
            "%s: all of its files are read, since %s is named after no split; so are: %s.",
            where,
            unnamed.relative_to(folder),
            ", ".join(doubtful),
        )
    return list(named)


def rows(file: Path, field: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, at least with the field; one without it has the names of those that are there."""
    kind = _kind(file)
    if kind == "parquet":
        with pq.ParquetFile(file) as table:
            names = table.schema_arrow.names
            for batch in table.iter_batches(columns=[field] if field in names else names):
                yield from batch.to_pylist()
    elif kind == "arrow":
        with pa.memory_map(str(file)) as source:
            try:
                reader = pa.ipc.open_file(source)
                batches: Iterable[pa.RecordBatch] = map(
                    reader.get_batch, range(reader.num_record_batches)
                )
            except pa.ArrowInvalid:
                source.seek(0)
                batches = pa.ipc.open_stream(source)
            for batch in batches:
                yield from (
                    batch.select([field]) if field in batch.schema.names else batch
                ).to_pylist()
    elif kind == "txt":
        yield from ({"text": line.rstrip("\r\n")} for line in _lines(file))
    elif kind == "csv":
        csv.field_size_limit(sys.maxsize)  # a field is a document
        delimiter = "\t" if ".tsv" in file.name.lower() else ","
        yield from csv.DictReader(_lines(file), delimiter=delimiter)
    else:
        for at, row in _json_entries(file, field):
            if not isinstance(row, dict):
                raise LaminaError(f"{at}: {shown(row)} is no object with fields.")
            if fault := surrogate_fault(row.get(field)):
                raise LaminaError(f"{at}: {fault}")
            yield row


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file of text, which may be compressed, with what ends them."""
    with fsspec.open(str(file), "rb", compression="infer") as opened:
        chunk = opened.read(LONGEST_MARK)
        # Bytes of UTF-16 are cut into lines once they are text.
        chunk += opened.readline() if encoding_of(chunk).startswith("utf-8") else opened.read()
        line_number = 1
        while chunk:
            yield from io.StringIO(decode(chunk, str(file), line_number), newline="")
            line_number += chunk.count(b"\n")
            chunk = opened.readline()


def _json_entries(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """(location, value) of what JSON writes one a line, as a list, or as an object that holds a list of objects."""
    lines = (
        (f"{file}, line {number}", line)
        for number, line in enumerate(_lines(file), 1)
        if line.strip()
    )
    head = list(islice(lines, 2))
    if not head:
        return
    if len(head) == 2 and _is_object(head[0][1]):
        for at, line in chain(head, lines):
            yield at, _parsed(line, at)
        return
    whole = _parsed("".join(line for _, line in chain(head, lines)), str(file))
    entries = listed_values(whole, field)
    for number, entry in enumerate([whole] if entries is None else entries, 1):
        yield f"{file}, entry {number}", entry


def _is_object(line: str) -> bool:
    """Whether a line is an object by itself, so that others follow it line by line."""
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _parsed(text: str, at: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise LaminaError(f"{at}: not JSON ({error.msg}, column {error.colno}).") from error


def _of_card(
    folder: Path, configurations: list[dict[str, Any]], name: str | None, split: str, where: str
) -> list[Path]:
    by_name = {str(each.get("config_name", "default")): each for each in configurations}
    if name is None:
        marked = [key for key, each in by_name.items() if each.get("default") or key == "default"]
        name = marked[0] if marked else next(iter(by_name)) if len(by_name) == 1 else None
    if name not in by_name:
        raise LaminaError(
            f"{where}: its README.md names no configuration '{name}'. Available: {sorted(by_name)}."
        )
    listed = by_name[name].get("data_files") or []
    listed = listed if isinstance(listed, list) else [listed]
    splits: dict[str, list[str]] = {}
    for each in listed:
        given = each if isinstance(each, dict) else {"split": "train", "path": each}
        paths = given["path"] if isinstance(given["path"], list) else [given["path"]]
        splits.setdefault(str(given["split"]), []).extend(map(str, paths))
    if split not in splits:
        raise LaminaError(
            f"{where}: its README.md names no split '{split}'. Available: {sorted(splits)}."
        )
    found = sorted(
        {path for pattern in splits[split] for path in folder.glob(pattern) if path.is_file()}
    )
    if not found:
        raise LaminaError(
            f"{where}: its README.md names files of '{split}' that are not there: {', '.join(splits[split])}."
        )
    return found


def _kind(path: Path) -> str | None:
    """How a file is read, by its name; None if it is no data."""
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _KINDS.get(name.suffix.lower()) if path.is_file() else None


def _named_split(path: Path) -> _NamedSplit | None:
    """The split that a path in a data set says, by the name of the file or of a folder."""
    name = path.as_posix().lower()
    for word in re.finditer(r"[a-z]+", name):
        if word.group() in _WORDS:
            rest = f"{name[: word.start()]}*{name[word.end() :]}"
            part = next(part for part in rest.split("/") if "*" in part)
            says_nothing_else = _NOTHING_ELSE.fullmatch(part) is not None
            return _NamedSplit(_WORDS[word.group()], rest, says_nothing_else)
    return None
