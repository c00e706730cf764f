"""Data sets in folders: which files belong to a split, and one field of their rows.

A card (README.md) names files and splits as on the hub. Without one, file names say splits only if all of them do: a
file `steam-train.jsonl` among others is no split. Only the field that is asked for is read, so that the types of other
fields do not matter.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import metadata_load

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
    splits = {path: _split(path.relative_to(folder)) for path in found}
    if None in splits.values():
        if split != "train":
            raise LaminaError(
                f"{where}: not all of its files are named after a split, so there is no '{split}'. Leave it out."
            )
        return found
    if split not in splits.values():
        named = ", ".join(sorted(map(str, set(splits.values()))))
        raise LaminaError(
            f"{where}: its files are named after {named}, and none after '{split}'. Name them otherwise if they are no "
            "splits."
        )
    return [path for path in found if splits[path] == split]


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
    else:
        with fsspec.open(
            str(file), "rt", encoding="utf-8-sig", compression="infer", newline=""
        ) as text:
            if kind == "txt":
                yield from ({"text": line.rstrip("\r\n")} for line in text)
            elif kind == "csv":
                csv.field_size_limit(sys.maxsize)  # a field is a document
                yield from csv.DictReader(
                    text, delimiter="\t" if ".tsv" in file.name.lower() else ","
                )
            else:
                yield from _json(text, file)


def _json(text: Any, file: Path) -> Iterator[dict[str, Any]]:
    """Objects one a line, or a list of them."""
    at, lines = str(file), (line for line in text if line.strip())
    first = next(lines, "")
    try:
        found: Iterable[Any] = map(json.loads, chain([first], lines) if first else ())
        if first.lstrip().startswith("["):
            found = json.loads(first + text.read())
        for number, row in enumerate(found, 1):
            at = f"{file}, entry {number}"
            if not isinstance(row, dict):
                raise LaminaError(f"{at}: is no object with fields.")
            yield row
    except json.JSONDecodeError as error:
        raise LaminaError(f"after {at}: not JSON ({error.msg}).") from error


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


def _split(path: Path) -> str | None:
    """The split that a name says, of the file or of a folder."""
    words = re.findall(r"[a-z]+", str(path).lower())
    return next((_WORDS[word] for word in words if word in _WORDS), None)
