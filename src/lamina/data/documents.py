"""Text documents from local files. Light enough for the Snakefile: no tokenizer here."""

import json
from pathlib import Path

from lamina.errors import LaminaError

CORPUS = "microworld_corpus"


def corpus_file(name: str, split: str | None, root: Path) -> Path:
    """The file behind a `text:` entry; the embedded corpus goes by name and split."""
    if name == CORPUS:
        return root / f"resources/reference/data/corpus_{split or 'train'}.jsonl"
    return root / name


def read_documents(path: Path, documents: str | None = None) -> list[str]:
    """Documents of a .json (list of strings), .jsonl (objects with "text") or .txt file (blank lines between them).

    `documents` is a half-open range such as "0:500".

    Raises
    ------
    LaminaError
        If the file is missing, of another form, or holds fewer documents than the range asks for.
    """
    if not path.is_file():
        raise LaminaError(f"text: there is no file {path}. Write the path of a .json, .jsonl or .txt file.")
    raw = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            texts = [entry if isinstance(entry, str) else entry["text"] for entry in json.loads(raw)]
        elif path.suffix == ".jsonl":
            texts = [json.loads(line)["text"] for line in raw.splitlines() if line.strip()]
        else:
            texts = [part.strip() for part in raw.split("\n\n") if part.strip()]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise LaminaError(
            f"text: {path} cannot be read as documents ({error}). Write a .json list of strings, a .jsonl of "
            '{"text": ...} lines, or a .txt with blank lines between documents.'
        ) from error
    if documents is None:
        return texts
    start, _, stop = documents.partition(":")
    first, last = int(start or 0), int(stop) if stop else len(texts)
    if last > len(texts) or first >= last:
        raise LaminaError(f'documents: "{documents}" asks for more than the {len(texts)} documents of {path}.')
    return texts[first:last]
