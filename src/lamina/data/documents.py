"""Text documents from local files. The Snakefile imports this module, so it does not load a tokenizer."""

import json
import logging
from pathlib import Path

from lamina.config import calibrations
from lamina.config.calibrations import CORPUS
from lamina.config.entry import document_range
from lamina.data.files import json_lines, read_text, shown
from lamina.errors import LaminaError

_FORM = f"a .json (list of texts), .jsonl or .txt file (blank lines between documents), or {CORPUS}"
_LINE = 'Write one JSON object a line: {"text": "…"}.'

_logger = logging.getLogger(__name__)


def corpus_file(name: str, split: str | None, root: Path) -> Path:
    """The file of a `text:` entry; the embedded corpus is named by its name and split."""
    return root / calibrations.corpus_file(name, split)


def read_documents(path: Path, documents: str | None = None, where: str = "text") -> list[str]:
    """Documents of a .json (list of texts), .jsonl (objects with "text") or .txt file (blank lines between them).

    Documents of white space are left out and not counted, and their number is logged. `documents` is a half-open range
    of the others, such as "0:500"; `where` is the entry of the configuration that messages name.

    Raises
    ------
    LaminaError
        If the file is missing, of another form or encoding, or holds fewer documents than the range asks for.
    """
    texts = _texts(path, f"{where}.text")
    kept = [text for text in texts if text.strip()]
    blank = f" ({len(texts) - len(kept)} more are white space and left out)" if len(kept) < len(texts) else ""
    if not kept:
        raise LaminaError(f"{where}.text: {path} holds no document{blank}. Write the path of {_FORM}.")
    if blank:
        _logger.warning("%s.text: %s holds %d documents%s.", where, path, len(kept), blank)
    return kept[slice(*check_range(documents, len(kept), path, where))]


def check_range(documents: str | None, count: int, path: Path | str, where: str) -> tuple[int, int | None]:
    """The bounds of a range of the `count` documents of a file or data set; refused if it asks for others."""
    first, last = document_range(documents)
    if first >= count or (last or 0) > count:
        raise LaminaError(
            f'{where}.documents: "{documents}" asks for more than {path} holds, {count}. Write '
            f'"{first if first < count else 0}:{count}", or null for all.'
        )
    return first, last


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
