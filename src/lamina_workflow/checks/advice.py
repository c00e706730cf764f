"""What may run but will hardly tell anything: one line each, before the first job.

Nothing here is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from lamina.data import files
from lamina.data.documents import corpus_file, read_documents
from lamina.models import checkpoint
from lamina.options import calibrations
from lamina.options.benchmarks import PerplexityEntry, TextEntry
from lamina.options.calibrations import CORPUS, Choices, Hub, Text
from lamina.options.entry import document_range
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune, Study

FEWEST_QUESTIONS = 30  # with fewer, the error of an accuracy is 9 points or more
_LARGEST_FILE = 1 << 20  # bytes of a data file that is read again for advice
_INSTRUCT = re.compile(r"(?i)(^|[-_./])(instruct|chat|it)($|[-_./])")


def advise_on(config: Configuration, root: Path) -> list[str]:
    """Sentences about entries that are allowed but of little use.

    Each names the key, says why, and what to write instead.

    config: A configuration that `lamina_workflow.checks.load.load_configuration` has checked, with
        the files under `root`.
    """
    return [
        *_advise_on_questions(config, root),
        *_advise_on_single_documents(config, root),
        *_advise_on_missing_benchmarks(config),
        *_advise_on_templates(config, root),
    ]


def _advise_on_questions(config: Configuration, root: Path) -> Iterator[str]:
    """Calibrations and tasks with very few questions."""
    for name, calibration in config.calibrations.items():
        entry_key = f"calibrations.{name}"
        if isinstance(calibration, Choices):
            file = calibration.choices
            yield from _advise_on_count(entry_key, "layers", calibration.limit, file, root)
        if isinstance(calibration, calibrations.Task):
            yield from _advise_on_count(entry_key, "layers", calibration.limit, None, root)
    for name, task in config.benchmarks.tasks.items():
        entry_key = f"benchmarks.tasks.{name}"
        yield from _advise_on_count(entry_key, "variants", task.limit, task.choices, root)


def _advise_on_count(
    entry_key: str, told_apart: str, limit: int | None, file: str | None, root: Path
) -> Iterator[str]:
    """At most one sentence about an entry with a limit and perhaps a file of questions.

    told_apart: What the questions are to tell apart.
    """
    counts = [limit, _count_questions(entry_key, file, root)]
    known_counts = [count for count in counts if count is not None]
    n_questions = min(known_counts, default=FEWEST_QUESTIONS)
    if n_questions < FEWEST_QUESTIONS:
        yield (
            f"{entry_key}: {n_questions} questions tell {told_apart} apart only by chance. Use at "
            f"least {FEWEST_QUESTIONS}, better a few hundred."
        )


def _count_questions(entry_key: str, file: str | None, root: Path) -> int | None:
    """The number of questions in a small file; None for a large one or none."""
    if file is None or (root / file).stat().st_size > _LARGEST_FILE:
        return None
    return len(files.read_questions(root / file, entry_key))


def _advise_on_single_documents(config: Configuration, root: Path) -> Iterator[str]:
    """Texts of one document, which give no error bar."""
    for name, calibration in config.calibrations.items():
        if isinstance(calibration, Text | Hub) and _is_single(calibration, name, root):
            yield (
                f"calibrations.{name}.documents: one document is one sample, which gives no error "
                "bar. Use several documents, or cut this one into several."
            )
    for name, text in config.benchmarks.perplexity.items():
        if text.joined is None and _is_single(text, name, root):
            yield (
                f"benchmarks.perplexity.{name}.documents: one document gives no error bar. Use "
                'several documents, or write `joined: ""`, which counts the windows of this one.'
            )


def _is_single(entry: Text | Hub | PerplexityEntry, name: str, root: Path) -> bool:
    """Whether the range of documents, or a small file, holds one document."""
    start, stop = document_range(entry.documents)
    if stop is not None and stop - start == 1:
        return True
    if not isinstance(entry, Text | TextEntry) or entry.text == CORPUS:
        return False
    path = corpus_file(entry.text, entry.split, root)
    if path.stat().st_size > _LARGEST_FILE:
        return False
    n_documents = len(read_documents(path, None, name))
    return min(stop or n_documents, n_documents) - start == 1


def _advise_on_missing_benchmarks(config: Configuration) -> Iterator[str]:
    """Calibrations whose task no benchmark measures."""
    for study_name, study in config.studies.items():
        if not isinstance(study, Prune):
            continue
        for name in study.calibrations:
            if not config.is_text(name) and not _measured_own_tasks(config, study, name):
                yield (
                    f"studies.{study_name}.calibrations: no benchmark of this study belongs to "
                    f"'{name}', so the report cannot say which variant keeps its task. Add one "
                    "under benchmarks.tasks by the name of its task, or of the calibration where "
                    "it has `choices`."
                )


def _measured_own_tasks(config: Configuration, study: Prune, calibration: str) -> list[str]:
    """The benchmarks of a study that measure the task of a calibration."""
    own_tasks = config.own_tasks(calibration)
    if not isinstance(study.tasks, list):
        return own_tasks
    return [task for task in own_tasks if task in study.tasks]


def _advise_on_templates(config: Configuration, root: Path) -> Iterator[str]:
    """Instruct models that are asked questions without the chat template of their training."""
    asked_models: set[str] = set()
    for study in config.studies.values():
        if _asks_questions(config, study):
            asked_models.update(study.models)

    for name, model in config.models.items():
        if name not in asked_models or model.chat_template or not _INSTRUCT.search(model.source):
            continue
        folder = root / model.source
        if not folder.is_dir() or checkpoint.has_chat_template(folder):
            yield (
                f"models.{name}.chat_template: '{model.source}' looks like a model for "
                "conversations, but questions are asked without its template. Write "
                "chat_template: true if you use the model with it."
            )


def _asks_questions(config: Configuration, study: Study) -> bool:
    """Whether a study calibrates on questions or measures tasks."""
    if not all(config.is_text(name) for name in study.calibrations):
        return True
    return isinstance(study, Prune) and bool(config.benchmarks.tasks) and study.tasks != []
