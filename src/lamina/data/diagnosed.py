"""Files for diagnoses: labelled texts and pairs of prompts. The configuration reads them without torch."""

from collections import Counter
from pathlib import Path
from typing import Any

from lamina.data.files import json_lines, read_text, shown
from lamina.errors import LaminaError

LABELLED = 'Each line is {"text": …, "label": …}.'
PAIRS = 'Each line is {"clean": …, "corrupt": …, "right": …, "foil": …}: two prompts, and what follows each.'


def labelled(path: Path, where: str, folds: int) -> list[tuple[str, str]]:
    """Texts and their labels; `where` is the key that names the file.

    Raises
    ------
    LaminaError
        If a line has another form, or there are fewer than two labels with a line in each of `folds` folds.
    """
    lines = _lines(path, where, {"text": str, "label": object}, LABELLED)
    texts = [(line["text"], str(line["label"])) for _, line in lines]
    counts = Counter(label for _, label in texts)
    few = sorted(label for label, count in counts.items() if count < folds)
    if few or len(counts) < 2:
        raise LaminaError(
            f"{where}: {path} has {len(counts)} labels"
            + (f", and only {counts[few[0]]} of '{few[0]}'" if few else "")
            + f". Write two labels or more, and at least {folds} lines of each, one for every fold."
        )
    return texts


def pairs(path: Path, where: str) -> list[tuple[str, dict[str, str]]]:
    """Pairs of prompts, each after its place in the file.

    Raises
    ------
    LaminaError
        If a line has another form, or has two equal prompts or answers; or if there is no line.
    """
    lines = _lines(path, where, dict.fromkeys(("clean", "corrupt", "right", "foil"), str), PAIRS)
    for at, line in lines:
        for one, other in (("clean", "corrupt"), ("right", "foil")):
            if line[one].strip() == line[other].strip():
                raise LaminaError(f"{at}: `{one}` and `{other}` are both {shown(line[one])}. Write two that differ.")
    if not lines:
        raise LaminaError(f"{where}: {path} is empty. {PAIRS}")
    return lines


def _lines(path: Path, where: str, keys: dict[str, type], form: str) -> list[tuple[str, Any]]:
    lines = list(json_lines(read_text(path, where, "a .jsonl file"), str(path), form))
    for at, line in lines:
        for key, kind in keys.items():
            if not isinstance(line, dict) or not isinstance(line.get(key), kind) or line.get(key) in ("", None):
                raise LaminaError(f"{at}: `{key}` is missing or no text. {form}")
    return lines
