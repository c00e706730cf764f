"""Reads text documents: from local files, data sets of the Hugging Face hub, or folders like these.

The Snakefile imports this module, so it loads neither `datasets` nor a tokenizer. Only jobs that
prepare data use the network.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lamina.data.files import json_lines, listed_values, read_text, shorten_value, surrogate_fault
from lamina.errors import LaminaError, located_at
from lamina.options import calibrations
from lamina.options.benchmarks import HubEntry, PerplexityEntry, TextEntry
from lamina.options.calibrations import CORPUS, HubTexts
from lamina.options.entry import document_range

UNKNOWN_DATASET = (
    "Correct its id or revision. If it is gated, accept its licence on the hub's page and run "
    "`hf auth login`."
)
"""Advice if the hub does not have a data set, or refuses it to this user."""

_FILE_FORM = (
    f"a .json (list of texts), .jsonl or .txt file (blank lines between documents), or {CORPUS}"
)
_LINE_FORM = 'Write one JSON object per line: {"text": "…"}.'
_LIST_FORM = 'Write a list of texts: ["…", "…"].'
# A line between documents of a .txt file may hold invisible blanks.
_BLANK_LINES = re.compile(r"\n\s*\n")
_NO_TEXT_FILES = (".parquet", ".arrow", ".csv", ".tsv", ".gz", ".bz2", ".xz", ".zst")

_logger = logging.getLogger(__name__)


def corpus_file(name: str, split: str | None, root: Path) -> Path:
    """The file of a `text:` entry; the embedded corpus is named by its name and split."""
    return root / calibrations.corpus_file(name, split)


def perplexity_texts(entry: PerplexityEntry, root: Path, where: str = "text") -> list[str]:
    """The documents of a perplexity.

    If documents are joined, blank ones are kept, as in published numbers.

    Raises LaminaError as `read_documents` and `read_hub` do.
    """
    if isinstance(entry, HubEntry):
        return read_hub(entry, root, where)
    assert isinstance(entry, TextEntry)
    path = corpus_file(entry.text, entry.split, root)
    return read_documents(path, entry.documents, where, blank=entry.joined is not None)


def read_documents(
    path: Path,
    documents: str | None = None,
    where: str = "text",
    blank: bool = False,
    is_long: Callable[[str], bool] | None = None,
) -> list[str]:
    """Documents of a .json (list of texts), .jsonl (objects with "text") or .txt file.

    documents: A half-open range of the documents, such as "0:500"; None takes all.
    where: The entry of the configuration that messages name.
    blank: Whether blank documents count. Otherwise they are left out before the range is taken, and
        their number is logged.
    is_long: Whether a document counts; all do if it is None.

    Raises LaminaError if the file is missing, has another format or encoding, or holds fewer
    documents than the range asks for.
    """
    texts = _read_texts(path, f"{where}.text")
    kept = [text for text in texts if blank or text.strip()]
    n_blank = len(texts) - len(kept)
    note = f" ({n_blank} more contain only white space and are left out)" if n_blank else ""
    if is_long is not None:
        kept = [text for text in kept if is_long(text)]
    if not kept:
        few = "" if is_long is None else " of at least `min_tokens` tokens"
        raise LaminaError(
            f"{where}.text: {path} holds no document{few}{note}. Write the path of {_FILE_FORM}."
        )
    if n_blank:
        _logger.warning("%s.text: %s holds %d documents%s.", where, path, len(kept), note)
    first, last = check_range(documents, len(kept), path, where)
    return kept[first:last]


def check_range(
    documents: str | None, count: int, path: Path | str, where: str
) -> tuple[int, int | None]:
    """The bounds of a range of the `count` documents of a file or data set.

    Raises LaminaError if the range is not within them.
    """
    first, last = document_range(documents)
    if first >= count or (last or 0) > count:
        possible_first = first if first < count else 0
        raise LaminaError(
            f'{where}.documents: "{documents}" asks for more than the {count} documents of {path}. '
            f'Write "{possible_first}:{count}", or null for all.'
        )
    return first, last


def read_hub(
    entry: HubTexts, root: Path, where: str, is_long: Callable[[str], bool] | None = None
) -> list[str]:
    """The documents of an entry.

    Blank ones are left out and not counted, unless documents are joined. A data set of the hub
    stays where `datasets` keeps its files. With streaming, only the documents that are asked for
    are read.

    where: The entry of the configuration that messages name.
    is_long: Whether a document counts; all do if it is None.

    Raises LaminaError if the data set cannot be read, lacks the name, the split or the field, or
    holds fewer documents.
    """
    from httpx2 import HTTPError

    first, last = document_range(entry.documents)
    n_read = 0
    texts: list[str] = []
    try:
        rows = _open_rows(entry, root, where)
        counted_texts = filter(is_long or bool, _document_texts(rows, entry, where))
        for n_read, text in enumerate(islice(counted_texts, last), start=1):
            if n_read > first:
                texts.append(text)
    except (OSError, ValueError, RuntimeError, EOFError, HTTPError) as error:
        raise _explain_failure(error, entry, root, where) from error

    if not n_read:
        raise LaminaError(
            f"{where}.hub: '{entry.hub}' holds no document"
            + (" of at least `min_tokens` tokens" if is_long else "")
            + f". Write another data set, or a `field` other than '{entry.field}'."
        )
    check_range(entry.documents, n_read, entry.hub, where)
    return texts


def check_folder(entry: HubTexts, root: Path, where: str) -> None:
    """Refuse a data set's folder if it is unclear which of its files belong to the split.

    Raises LaminaError also if no file does.
    """
    from lamina.data import folders

    folders.find_files(root / entry.hub, entry.name, entry.split, f"{where}.hub: '{entry.hub}'")


def _read_texts(path: Path, where: str) -> list[str]:
    """All documents of a file, including blank ones."""
    suffix = path.suffix.lower()
    if suffix in _NO_TEXT_FILES:
        raise LaminaError(
            f"{where}: {path} is a table or compressed. Write the path of {_FILE_FORM}. For tables "
            "or compressed files in a calibration, write `hub: FOLDER` instead of `text`."
        )
    content = read_text(path, where, _FILE_FORM)
    location = f"{where}: {path}"
    if suffix in (".jsonl", ".ndjson"):
        lines = json_lines(content, location, _LINE_FORM)
        return [_text_of(value, line, _LINE_FORM) for line, value in lines]
    if suffix == ".json":
        return _parse_json_list(content, location)
    parts = [part.strip() for part in _BLANK_LINES.split(content)]
    return [part for part in parts if part]


def _parse_json_list(content: str, location: str) -> list[str]:
    """The documents of a .json file: a list of texts, or of objects with "text"."""
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        advice = _LIST_FORM
        if error.msg == "Extra data":
            advice = "If it has one object per line, rename it to .jsonl."
        raise LaminaError(
            f"{location}, line {error.lineno}: not JSON ({error.msg}). {advice}"
        ) from error
    entries = listed_values(value, "text")
    if entries is None:
        raise LaminaError(f"{location}: {shorten_value(value)} is not a list. {_LIST_FORM}")
    texts: list[str] = []
    for number, entry in enumerate(entries, 1):
        document = {"text": entry} if isinstance(entry, str) else entry
        texts.append(_text_of(document, f"{location}, entry {number}", _LIST_FORM))
    return texts


def _text_of(value: object, location: str, form: str) -> str:
    """The "text" of an object; `form` states in the message what is expected."""
    text = value.get("text") if isinstance(value, dict) else None
    if isinstance(text, str):
        if fault := surrogate_fault(text):
            raise LaminaError(f"{location}: {fault}")
        return text
    if isinstance(value, dict) and "text" not in value:
        raise LaminaError(f"{location}: `text` is missing. {form}")
    raise LaminaError(f"{location}: {shorten_value(value)} is not a text. {form}")


def _open_rows(entry: HubTexts, root: Path, where: str) -> Iterable[dict[str, Any]]:
    """The rows of a data set, read one by one from a folder, or as `datasets` reads them."""
    from datasets import load_dataset

    folder = root / entry.hub
    if folder.is_dir():
        return _folder_rows(folder, entry, f"{where}.hub: '{entry.hub}'")
    rows: Iterable[dict[str, Any]] = load_dataset(
        entry.hub,
        entry.name,
        split=entry.split,
        revision=entry.revision,
        streaming=entry.streaming,
    )
    return rows


def _folder_rows(folder: Path, entry: HubTexts, location: str) -> Iterator[dict[str, Any]]:
    """The rows of a split's files; `location` begins messages."""
    from lamina.data import folders

    for file in folders.find_files(folder, entry.name, entry.split, location):
        with located_at(location):
            yield from folders.read_rows(file, entry.fields)


def _explain_failure(error: Exception, entry: HubTexts, root: Path, where: str) -> LaminaError:
    """Why a data set cannot be read, and what to do."""
    from datasets.exceptions import DatasetNotFoundError

    location = f"{where}.hub: '{entry.hub}'"
    if (root / entry.hub).is_dir():
        return LaminaError(f"{location} cannot be read: {error}")
    if isinstance(error, DatasetNotFoundError):
        advice = UNKNOWN_DATASET
    elif isinstance(error, ValueError):
        advice = "Correct the name or the split."  # the error lists the existing ones
    else:
        advice = (
            f"Without network access, run `snakemake {_prepared_file(where)}` on a node that has "
            "it, or write a folder with its files."
        )
    reason = " ".join(str(error).split())
    return LaminaError(
        f"{location} (name {entry.name}, split {entry.split}, revision {entry.revision}) cannot be "
        f"read: {reason} {advice}"
    )


def _prepared_file(where: str) -> str:
    """The file that will hold the documents of an entry."""
    benchmark = where.removeprefix("benchmarks.perplexity.")
    if benchmark != where:
        return f"results/tasks/{benchmark}.parquet"
    return f"results/calibrations/MODEL/{where.partition('.')[2]}.parquet"


def _document_texts(rows: Iterable[dict[str, Any]], entry: HubTexts, where: str) -> Iterator[str]:
    """The text of each row; blank ones only if documents are joined."""
    for row in rows:
        values = {field: _field_text(row, field, where) for field in entry.fields}
        text = _fill_template(entry.template, values) if entry.template else values[entry.field]
        if text.strip() or entry.joined is not None:
            yield text


def _fill_template(template: str, values: dict[str, str]) -> str:
    return re.sub(calibrations.TEMPLATE_FIELD, lambda field: values[field[1]], template)


def _field_text(row: dict[str, Any], field: str, where: str) -> str:
    """The text of one field of a row.

    Raises LaminaError if it is missing, null or not a text.
    """
    text = _join_turns(row.get(field))
    if text is not None:
        return text
    if field in row and row[field] is None:
        raise LaminaError(
            f"{where}.field: '{field}' of a document is null. Leave such documents out."
        )
    names = ", ".join(map(str, row))
    raise LaminaError(
        f"{where}.field: a document has no text '{field}'. Its fields are {names}. Write "
        "one that holds a text, or a list of turns."
    )


def _join_turns(value: Any) -> str | None:
    """A text as it is, or the turns of a conversation with blank lines between them; else None."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    turns: list[Any] = []
    for turn in value:
        if isinstance(turn, dict):
            turn = turn.get("content", turn.get("value"))
        turns.append(turn)
    if not all(isinstance(turn, str) for turn in turns):
        return None
    return "\n\n".join(turns)
