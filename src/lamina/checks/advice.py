"""What may run and will hardly say anything: one line each, before the first job. Nothing here is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

from lamina.config.benchmarks import Perplexity
from lamina.config.calibrations import CORPUS, Choices, Hub, Text
from lamina.config.calibrations import Task as TaskCalibration
from lamina.config.configuration import Configuration
from lamina.config.entry import document_range
from lamina.config.studies import Prune, Study
from lamina.data import files
from lamina.data.documents import corpus_file, read_documents
from lamina.models import checkpoint

FEWEST_QUESTIONS = 30  # below, the error of an accuracy is 9 points or more
_READABLE = 1 << 20  # bytes of a data file that is read again for this
_INSTRUCT = re.compile(r"(?i)(^|[-_./])(instruct|chat|it)($|[-_./])")


def advise(config: Configuration, root: Path) -> list[str]:
    """Sentences about entries that are allowed and of little use, each with its key, why, and what to write instead.

    config: a configuration that `lamina.checks.load.load` has checked, with the files under `root`.
    """
    return [
        *_few_questions(config, root),
        *_single_documents(config, root),
        *_unanswered_calibrations(config),
        *_unused_templates(config, root),
    ]


def _few_questions(config: Configuration, root: Path) -> Iterator[str]:
    asked = {}
    for name, calibration in config.calibrations.items():
        if isinstance(calibration, Choices | TaskCalibration):
            path = calibration.choices if isinstance(calibration, Choices) else None
            asked[f"calibrations.{name}"] = (path, calibration.limit)
    for name, task in config.benchmarks.tasks.items():
        asked[f"benchmarks.tasks.{name}"] = (task.choices, task.limit)
    for where, (path, limit) in asked.items():
        counts = [limit, _count_questions(path, where, root)]
        count = min((each for each in counts if each is not None), default=FEWEST_QUESTIONS)
        if count < FEWEST_QUESTIONS:
            yield (
                f"{where}: {count} questions tell layers apart only by chance. Take at least "
                f"{FEWEST_QUESTIONS}, better some hundred."
            )


def _count_questions(path: str | None, where: str, root: Path) -> int | None:
    """The questions in a small file; None for another one."""
    if path is None or (root / path).stat().st_size > _READABLE:
        return None
    return len(files.read_questions(root / path, where))


def _single_documents(config: Configuration, root: Path) -> Iterator[str]:
    for name, calibration in config.calibrations.items():
        if isinstance(calibration, Text | Hub) and _is_single(calibration, name, root):
            yield (
                f"calibrations.{name}.documents: one document is one sample, and no error can be told from it. Take "
                "several, or cut it into several."
            )
    for name, text in config.benchmarks.perplexity.items():
        if text.joined is None and _is_single(text, name, root):
            yield (
                f"benchmarks.perplexity.{name}.documents: one document has no error bar. Take several, or write "
                '`joined: ""`, which counts its windows.'
            )


def _is_single(entry: Text | Hub | Perplexity, name: str, root: Path) -> bool:
    """Whether the range of documents, or a small file, holds one document."""
    start, stop = document_range(entry.documents)
    if stop is not None and stop - start == 1:
        return True
    if isinstance(entry, Hub) or entry.text == CORPUS:
        return False
    path = corpus_file(entry.text, entry.split, root)
    if path.stat().st_size > _READABLE:
        return False
    n_documents = len(read_documents(path, None, name))
    return min(stop or n_documents, n_documents) - start == 1


def _unanswered_calibrations(config: Configuration) -> Iterator[str]:
    """Calibrations that no benchmark belongs to, so that the report cannot say which variant keeps their task."""
    for study_name, study in config.studies.items():
        if not isinstance(study, Prune):
            continue
        for name in study.calibrations:
            parts = config.parts(name).values()
            is_text = all(isinstance(part, Text | Hub) for part in parts)
            if not is_text and not _own_benchmarks(config, study, name):
                yield (
                    f"studies.{study_name}.calibrations: no benchmark of this study belongs to '{name}', so the report "
                    "cannot say which variant keeps its task. Add one under benchmarks.tasks by the name of its task, "
                    "or of the calibration where it has `choices`."
                )


def _own_benchmarks(config: Configuration, study: Prune, calibration: str) -> list[str]:
    own = config.own_tasks(calibration)
    return [task for task in own if task in study.tasks] if isinstance(study.tasks, list) else own


def _unused_templates(config: Configuration, root: Path) -> Iterator[str]:
    """Instruct models whose questions are asked without the chat template that they were trained on."""
    asking: set[str] = set()
    for study in config.studies.values():
        if _asks_questions(config, study):
            asking |= set(study.models)
    for name, model in config.models.items():
        if name not in asking or model.chat_template or not _INSTRUCT.search(model.source):
            continue
        folder = root / model.source
        if not folder.is_dir() or checkpoint.has_chat_template(folder):
            yield (
                f"models.{name}.chat_template: '{model.source}' looks like a model for conversations, and questions "
                "are asked without its template. Write chat_template: true if it is used with one."
            )


def _asks_questions(config: Configuration, study: Study) -> bool:
    for name in study.calibrations:
        if not all(isinstance(part, Text | Hub) for part in config.parts(name).values()):
            return True
    return isinstance(study, Prune) and bool(config.benchmarks.tasks) and study.tasks != []
