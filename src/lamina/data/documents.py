"""Text documents: of local files, and of data sets of the Hugging Face hub or folders of the same form.

The Snakefile imports this module, so it loads neither `datasets` nor a tokenizer. Only preparing jobs use the network.
"""

import json
import logging
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lamina.config import calibrations
from lamina.config.benchmarks import Perplexity
from lamina.config.calibrations import CORPUS, Hub
from lamina.config.entry import document_range
from lamina.data.files import json_lines, listed_values, read_text, shown, surrogate_fault
from lamina.errors import LaminaError, at

_FORM = f"a .json (list of texts), .jsonl or .txt file (blank lines between documents), or {CORPUS}"
# Of a data set that the hub does not have, or does not give to this user.
UNKNOWN = "Correct its id or revision. If it is gated, accept its licence on the hub's page and run `hf auth login`."
_LINE = 'Write one JSON object a line: {"text": "…"}.'
# A line between documents of a .txt file may hold blanks, which nobody sees.
_BLANK_LINES = re.compile(r"\n\s*\n")
_NO_PLAIN_FILE = (".parquet", ".arrow", ".csv", ".tsv", ".gz", ".bz2", ".xz", ".zst")

_logger = logging.getLogger(__name__)


def corpus_file(name: str, split: str | None, root: Path) -> Path:
    """The file of a `text:` entry; the embedded corpus is named by its name and split."""
    return root / calibrations.corpus_file(name, split)


def perplexity_texts(entry: Perplexity, root: Path, where: str = "text") -> list[str]:
    """The documents of a perplexity; those that are joined keep documents of white space, as published numbers do."""
    path = corpus_file(entry.text, entry.split, root)
    return read_documents(path, entry.documents, where, blank=entry.joined is not None)


def read_documents(
    path: Path, documents: str | None = None, where: str = "text", blank: bool = False
) -> list[str]:
    """Documents of a .json (list of texts), .jsonl (objects with "text") or .txt file (blank lines between them).

    Unless `blank`, documents of white space are left out and not counted, and their number is logged. `documents` is a
    half-open range of the others, such as "0:500"; `where` is the entry of the configuration that messages name.

    Raises LaminaError if the file is missing, of another form or encoding, or holds fewer documents than the range asks
    for.
    """
    texts = _texts(path, f"{where}.text")
    kept = [text for text in texts if blank or text.strip()]
    left = (
        f" ({len(texts) - len(kept)} more are white space and left out)"
        if len(kept) < len(texts)
        else ""
    )
    if not kept:
        raise LaminaError(
            f"{where}.text: {path} holds no document{left}. Write the path of {_FORM}."
        )
    if left:
        _logger.warning("%s.text: %s holds %d documents%s.", where, path, len(kept), left)
    return kept[slice(*check_range(documents, len(kept), path, where))]


def check_range(
    documents: str | None, count: int, path: Path | str, where: str
) -> tuple[int, int | None]:
    """The bounds of a range of the `count` documents of a file or data set; refused if it asks for others."""
    first, last = document_range(documents)
    if first >= count or (last or 0) > count:
        raise LaminaError(
            f'{where}.documents: "{documents}" asks for more than {path} holds, {count}. Write '
            f'"{first if first < count else 0}:{count}", or null for all.'
        )
    return first, last


def _texts(path: Path, where: str) -> list[str]:
    suffix = path.suffix.lower()
    if suffix in _NO_PLAIN_FILE:
        raise LaminaError(
            f"{where}: {path} is a table or compressed. Write the path of {_FORM}; a calibration reads tables and "
            "compressed files from a folder, by `hub: FOLDER` in the place of `text`."
        )
    raw = read_text(path, where, _FORM)
    place = f"{where}: {path}"
    if suffix in (".jsonl", ".ndjson"):
        return [_text(value, location, _LINE) for location, value in json_lines(raw, place, _LINE)]
    if suffix != ".json":
        parts = [part.strip() for part in _BLANK_LINES.split(raw)]
        return [part for part in parts if part]
    form = 'Write a list of texts: ["…", "…"].'
    try:
        value = json.loads(raw)
    except json.JSONDecodeError as error:
        remedy = (
            "One object a line is .jsonl: rename the file." if error.msg == "Extra data" else form
        )
        raise LaminaError(
            f"{place}, line {error.lineno}: not JSON ({error.msg}). {remedy}"
        ) from error
    entries = listed_values(value, "text")
    if entries is None:
        raise LaminaError(f"{place}: {shown(value)} is not a list. {form}")
    texts = []
    for number, entry in enumerate(entries, 1):
        document = {"text": entry} if isinstance(entry, str) else entry
        texts.append(_text(document, f"{place}, entry {number}", form))
    return texts


def _text(value: object, location: str, form: str) -> str:
    text = value.get("text") if isinstance(value, dict) else None
    if isinstance(text, str):
        if fault := surrogate_fault(text):
            raise LaminaError(f"{location}: {fault}")
        return text
    missing = isinstance(value, dict) and "text" not in value
    raise LaminaError(
        f"{location}: {'`text` is missing' if missing else f'{shown(value)} is no text'}. {form}"
    )


def read_hub(entry: Hub, root: Path, where: str) -> list[str]:
    """The documents of an entry; those of white space are left out and not counted.

    A data set of the hub stays where `datasets` keeps its files. With streaming, only the documents that are asked for
    are read. `where` is the entry of the configuration that messages name.

    Raises LaminaError if the data set cannot be read, lacks the name, the split or the field, or holds fewer documents.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError
    from httpx2 import HTTPError

    folder = root / entry.hub
    place = f"{where}.hub: '{entry.hub}'"
    first, last = document_range(entry.documents)
    try:
        if folder.is_dir():
            rows: Any = _folder_rows(folder, entry, place)
        else:
            options = {
                "split": entry.split,
                "revision": entry.revision,
                "streaming": entry.streaming,
            }
            rows = load_dataset(entry.hub, entry.name, **options)
        texts = list(islice(_fields(rows, entry.field, where), first, last))
    except (OSError, ValueError, RuntimeError, EOFError, HTTPError) as error:
        if folder.is_dir():
            raise LaminaError(f"{place} cannot be read: {error}") from error
        remedy = (
            f"Where there is no network, run `snakemake results/calibrations/MODEL/{where.partition('.')[2]}.parquet` "
            "on a node with one, or write a folder of its files."
        )
        if isinstance(error, DatasetNotFoundError):
            remedy = UNKNOWN
        elif isinstance(error, ValueError):
            remedy = "Correct the name or the split."  # the error lists the existing ones
        raise LaminaError(
            f"{place} (name {entry.name}, split {entry.split}, revision {entry.revision}) cannot be "
            f"read: {' '.join(str(error).split())} {remedy}"
        ) from error
    if not texts and not first:
        raise LaminaError(
            f"{place} holds no document. Write another, or another field than '{entry.field}'."
        )
    if not texts or (last is not None and len(texts) < last - first):
        check_range(entry.documents or "0:1", first + len(texts) if texts else 0, entry.hub, where)
    return texts


def check_folder(entry: Hub, root: Path, where: str) -> None:
    """Refuse a folder of a data set that has no file of the split, or of which it is not known which those are."""
    from lamina.data import folders

    folders.files(root / entry.hub, entry.name, entry.split, f"{where}.hub: '{entry.hub}'")


def _folder_rows(folder: Path, entry: Hub, place: str) -> Iterator[dict[str, Any]]:
    """The rows of a split's files; `place` begins messages."""
    from lamina.data import folders

    for file in folders.files(folder, entry.name, entry.split, place):
        with at(place):
            yield from folders.rows(file, entry.field)


def _fields(rows: Any, field: str, where: str) -> Iterator[str]:
    for row in rows:
        text = _joined(row.get(field))
        if text is None:
            if row.get(field, 0) is None:
                raise LaminaError(
                    f"{where}.field: '{field}' of a document is null. Leave such documents out."
                )
            raise LaminaError(
                f"{where}.field: a document has no text '{field}'. Its fields are {', '.join(map(str, row))}: write "
                "one that is a text, or a list of turns."
            )
        if text.strip():
            yield text


def _joined(value: Any) -> str | None:
    """A text as it is, a conversation as its turns with blank lines between them; None for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    turns: list[Any] = [
        turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn for turn in value
    ]
    return "\n\n".join(turns) if all(isinstance(turn, str) for turn in turns) else None
