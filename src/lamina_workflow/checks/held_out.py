"""Check that calibrations use no test data, as far as file names and ranges show it.

The jobs of rule `check_overlap` compare the documents themselves.
"""

import math
from pathlib import Path

from lamina.errors import LaminaError
from lamina.options.benchmarks import HubEntry, PerplexityEntry, TextEntry
from lamina.options.calibrations import CORPUS, Choices, Hub, Text
from lamina.options.entry import document_range
from lamina_workflow.config.configuration import Configuration


def check_held_out(config: Configuration, root: Path) -> None:
    """Refuse data that is used for both a calibration and a benchmark.

    Raises LaminaError, whose message names both entries.
    """
    for name, calibration in config.calibrations.items():
        if isinstance(calibration, Choices):
            _check_questions(config, name, calibration, root)
        if isinstance(calibration, Text | Hub):
            _check_texts(config, name, calibration, root)


def _check_questions(config: Configuration, name: str, calibration: Choices, root: Path) -> None:
    for task_name, task in config.benchmarks.tasks.items():
        if task.choices and _is_same_file(root, task.choices, calibration.choices):
            raise LaminaError(
                f"calibrations.{name}.choices: '{calibration.choices}' is also the test file of "
                f"benchmarks.tasks.{task_name}, and test data must not be used for calibration. "
                "Split the file in two."
            )


def _check_texts(config: Configuration, name: str, calibration: Text | Hub, root: Path) -> None:
    for text_name, text in config.benchmarks.perplexity.items():
        source = _shared_source(root, text, calibration)
        if source and _do_ranges_overlap(calibration.documents, text.documents):
            raise LaminaError(
                f"calibrations.{name}.documents: {calibration.documents or 'all'} of "
                f"'{source}' overlaps with documents {text.documents or 'all'} of "
                f"benchmarks.perplexity.{text_name}, and test data must not be used for "
                'calibration. Write ranges that do not overlap, such as "0:500" here and "500:700" '
                "there."
            )


def _shared_source(root: Path, text: PerplexityEntry, calibration: Text | Hub) -> str | None:
    """The file or data set whose documents are numbered by both a perplexity and a calibration."""
    if isinstance(calibration, Text) and isinstance(text, TextEntry):
        is_other_split = calibration.text == CORPUS and calibration.split != text.split
        if not is_other_split and _is_same_file(root, text.text, calibration.text):
            return calibration.text
    if isinstance(calibration, Hub) and isinstance(text, HubEntry):
        # If one of them counts fewer documents, the same number means another document.
        counts_alike = calibration.min_tokens is None and (calibration.joined is None) == (
            text.joined is None
        )
        sources = [(entry.hub, entry.name, entry.split) for entry in (calibration, text)]
        if counts_alike and sources[0] == sources[1]:
            return calibration.hub
    return None


def _do_ranges_overlap(documents: str | None, other_documents: str | None) -> bool:
    start, stop = document_range(documents)
    other_start, other_stop = document_range(other_documents)
    return max(start, other_start) < min(stop or math.inf, other_stop or math.inf)


def _is_same_file(root: Path, file: str, other_file: str) -> bool:
    return (root / file).resolve() == (root / other_file).resolve()
