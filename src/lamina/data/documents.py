"""Text documents from local files. Light enough for the Snakefile: no tokenizer here."""

import json
import logging
from pathlib import Path

from lamina.data.files import json_lines, locate, read_text, shown
from lamina.errors import LaminaError

CORPUS = "microworld_corpus"

_FORM = "a .json (list of texts), .jsonl (a `text` in each line) or .txt file (blank lines between documents)"
_LINE = 'Write one JSON object a line: {"text": "…"}.'

_logger = logging.getLogger(__name__)


def corpus_file(name: str, split: str | None, root: Path) -> Path:
    """The file behind a `text:` entry; the embedded corpus goes by name and split."""
    if name == CORPUS:
        return root / f"resources/reference/data/corpus_{split or 'train'}.jsonl"
    return locate(name, root)


def span(documents: str | None, where: str) -> tuple[int, int | None]:
    """First and last (exclusive; None: to the end) document of a half-open range such as "0:500"; None takes all.

    Raises
    ------
    LaminaError
        If the range holds nothing.
    """
    start, _, stop = (documents or ":").partition(":")
    first, last = int(start or 0), int(stop) if stop else None
    if last is not None and first >= last:
        fault, remedy = ("ends before it starts", last) if first > last else ("is empty", first)
        raise LaminaError(f'{where}.documents: "{documents}" {fault}. Write "{remedy}:{max(first, last + 1)}".')
    return first, last


def read_documents(path: Path, documents: str | None = None, where: str = "text") -> list[str]:
    """Documents of a .json (list of texts), .jsonl (objects with "text") or .txt file (blank lines between them).

    Documents of white space say nothing: they are left out, not counted, and their number is logged. `documents` is a
    half-open range of the others, such as "0:500"; `where` is the entry of the configuration that messages name.

    Raises
    ------
    LaminaError
        If the file is missing, of another form or encoding, or holds fewer documents than the range asks for.
    """
    first, last = span(documents, where)
    texts = _texts(path, f"{where}.text")
    kept = [text for text in texts if text.strip()]
    blank = f" ({len(texts) - len(kept)} more are white space and left out)" if len(kept) < len(texts) else ""
    if not kept:
        raise LaminaError(f"{where}.text: {path} holds no document{blank}. Write the path of {_FORM}.")
    if max(first + 1, last or 0) > len(kept):
        raise LaminaError(
            f'{where}.documents: "{documents}" asks for more than the {len(kept)} documents of {path}{blank}. Write '
            f'"{first if first < len(kept) else 0}:{len(kept)}", or null for all.'
        )
    if blank:
        _logger.warning("%s.text: %s holds %d documents%s.", where, path, len(kept), blank)
    return kept[first:last]


def _texts(path: Path, where: str) -> list[str]:
    raw = read_text(path, where, _FORM)
    place = f"{where}: {path}"
    if path.suffix == ".jsonl":
        return [_text(value, at, _LINE) for at, value in json_lines(raw, place, _LINE)]
    if path.suffix != ".json":
        return [part.strip() for part in raw.split("\n\n") if part.strip()]
    form = 'Write a list of texts: ["…", "…"].'
    try:
        entries = json.loads(raw)
    except json.JSONDecodeError as error:
        remedy = "One object a line is .jsonl: rename the file." if error.msg == "Extra data" else form
        raise LaminaError(f"{place}, line {error.lineno}: not JSON ({error.msg}). {remedy}") from error
    if not isinstance(entries, list):
        raise LaminaError(f"{place}: {shown(entries)} is not a list. {form}")
    return [
        entry if isinstance(entry, str) else _text(entry, f"{place}, entry {number}", form)
        for number, entry in enumerate(entries, 1)
    ]


def _text(value: object, at: str, form: str) -> str:
    text = value.get("text") if isinstance(value, dict) else None
    if isinstance(text, str):
        return text
    missing = isinstance(value, dict) and "text" not in value
    raise LaminaError(f"{at}: {'`text` is missing' if missing else f'{shown(value)} is no text'}. {form}")
