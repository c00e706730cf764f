"""Texts of a data set of the Hugging Face hub, or of a folder of the same form. Only preparing jobs use the network."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import load_dataset

from lamina.config.calibrations import Hub
from lamina.config.entry import document_range
from lamina.data.documents import check_range
from lamina.errors import LaminaError


def read_texts(entry: Hub, root: Path, where: str) -> list[str]:
    """The documents of an entry; those of white space are left out and not counted.

    A data set of the hub stays where `datasets` keeps its files. With streaming, only the documents that are asked for
    are read. `where` is the entry of the configuration that messages name.

    Raises
    ------
    LaminaError
        If the data set cannot be read, lacks the name, the split or the field, or holds fewer documents.
    """
    folder = root / entry.hub
    local = folder.is_dir()
    first, last = document_range(entry.documents)
    try:
        rows = load_dataset(
            str(folder) if local else entry.hub,
            entry.name,
            split=entry.split,
            revision=None if local else entry.revision,
            # `datasets` caches a folder by its name, so without streaming it could read another folder of that name.
            streaming=local or entry.streaming,
        )
        texts = list(islice(_texts(rows, entry.field, where), first, last))
    except (OSError, ValueError, RuntimeError) as error:
        # A missing name or split is a ValueError whose text lists the existing ones.
        raise LaminaError(
            f"{where}.hub: '{entry.hub}' (name {entry.name}, split {entry.split}, revision {entry.revision}) cannot be "
            f"read: {error} Correct the name or the split. Where there is no network, run `snakemake results/"
            f"calibrations/MODEL/{where.partition('.')[2]}.parquet` on a node with one, or write a folder of its files."
        ) from error
    if not texts or (last is not None and len(texts) < last - first):
        check_range(entry.documents or "0:1", first + len(texts) if texts else 0, entry.hub, where)
    return texts


def _texts(rows: Any, field: str, where: str) -> Iterator[str]:
    for row in rows:
        text = _joined(row.get(field))
        if text is None:
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
    turns: list[Any] = [turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn for turn in value]
    return "\n\n".join(turns) if all(isinstance(turn, str) for turn in turns) else None
