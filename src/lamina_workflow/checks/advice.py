"""Advice on studies that can run but will show little: one line of each kind, before the first job.

Nothing is refused here. The lines name keys of the configuration; `lamina prune` gives the same
advice in its own words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
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

SWITCH = "LAMINA_ADVICE"
"""Environment variable: `no` if a command wants no advice."""
MAX_NAMED = 3  # keys in a line
FEWEST_QUESTIONS = 30  # with fewer, the error of an accuracy is 9 points or more
_LARGEST_FILE = 1 << 20  # bytes of a data file that is read once more for advice
_INSTRUCT = re.compile(r"(?i)(^|[-_./])(instruct|chat|it)($|[-_./])")


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether Snakemake's caller wants advice: it runs or plans a study, and gives none itself."""
    return environ.get(SWITCH) != "no"


def advise_on(config: Configuration, root: Path) -> list[str]:
    """Sentences about entries that are allowed but of little use, at most one of each kind.

    Each names the keys, gives the reason, and says what to write instead.

    config: A configuration that `lamina_workflow.checks.load.load_configuration` has checked, with
        the files under `root`.
    """
    return [
        *_advise_on_questions(config, root),
        *_advise_on_single_documents(config, root),
        *_advise_on_missing_benchmarks(config),
        *_advise_on_templates(config, root),
    ]


def _list_names(names: Sequence[str]) -> str:
    """The first few names as text."""
    listed = ", ".join(names[:MAX_NAMED])
    n_more = len(names) - MAX_NAMED
    return f"{listed} and {n_more} more" if n_more > 0 else listed


def _advise_on_questions(config: Configuration, root: Path) -> Iterator[str]:
    """Calibrations and tasks with very few questions."""
    calibration_counts: dict[str, int | None] = {}
    for name, calibration in config.calibrations.items():
        entry_key = f"calibrations.{name}"
        if isinstance(calibration, Choices):
            n_questions = _count_questions(entry_key, calibration.choices, root)
            calibration_counts[entry_key] = _least(calibration.limit, n_questions)
        if isinstance(calibration, calibrations.Task):
            calibration_counts[entry_key] = calibration.limit
    yield from _advise_on_counts(calibration_counts, "layers")

    task_counts: dict[str, int | None] = {}
    for name, task in config.benchmarks.tasks.items():
        entry_key = f"benchmarks.tasks.{name}"
        n_questions = _count_questions(entry_key, task.choices, root)
        task_counts[entry_key] = _least(task.limit, n_questions)
    yield from _advise_on_counts(task_counts, "variants")


def _least(limit: int | None, n_questions: int | None) -> int | None:
    """The smaller of two counts, each of which may be unknown."""
    known_counts = [count for count in (limit, n_questions) if count is not None]
    return min(known_counts, default=None)


def _advise_on_counts(counts: Mapping[str, int | None], told_apart: str) -> Iterator[str]:
    """At most one sentence about the entries that have few questions.

    counts: Number of questions by the key of the entry; None where there are many or it is unknown.
    told_apart: What the questions must distinguish.
    """
    few = {
        key: count
        for key, count in counts.items()
        if count is not None and count < FEWEST_QUESTIONS
    }
    if not few:
        return
    n_least = min(few.values())
    n_most = max(few.values())
    numbers = f"{n_least}" if n_least == n_most else f"{n_least} to {n_most}"
    yield (
        f"{_list_names(list(few))}: {numbers} questions are too few to tell {told_apart} apart. "
        f"Use at least {FEWEST_QUESTIONS}, preferably a few hundred."
    )


def _count_questions(entry_key: str, file: str | None, root: Path) -> int | None:
    """The number of questions in a small file; None for a large file or no file."""
    if file is None or (root / file).stat().st_size > _LARGEST_FILE:
        return None
    return len(files.read_questions(root / file, entry_key))


def _advise_on_single_documents(config: Configuration, root: Path) -> Iterator[str]:
    """Texts of one document, which allow no error bar."""
    single_calibrations = [
        f"calibrations.{name}.documents"
        for name, calibration in config.calibrations.items()
        if isinstance(calibration, Text | Hub) and _is_single(calibration, name, root)
    ]
    if single_calibrations:
        yield (
            f"{_list_names(single_calibrations)}: one document is one sample, which gives no error "
            "bar. Use several documents, or cut this one into several."
        )
    single_texts = [
        f"benchmarks.perplexity.{name}.documents"
        for name, text in config.benchmarks.perplexity.items()
        if text.joined is None and _is_single(text, name, root)
    ]
    if single_texts:
        yield (
            f"{_list_names(single_texts)}: one document gives no error bar. Use several documents, "
            'or write `joined: ""`, which counts the windows of this one.'
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
    """Calibrations whose task is measured by no benchmark."""
    lacking_studies: list[str] = []
    unmeasured: list[str] = []
    for study_name, study in config.studies.items():
        if not isinstance(study, Prune):
            continue
        names = [
            f"'{name}'"
            for name in study.calibrations
            if not config.is_text(name) and not _measured_own_tasks(config, study, name)
        ]
        if names:
            lacking_studies.append(f"studies.{study_name}.calibrations")
            unmeasured += [name for name in names if name not in unmeasured]
    if unmeasured:
        yield (
            f"{_list_names(lacking_studies)}: no benchmark measures {_list_names(unmeasured)}, so "
            "the report cannot say which variant keeps that task. Add one under benchmarks.tasks, "
            "named after the task, or after the calibration if that has `choices`."
        )


def _measured_own_tasks(config: Configuration, study: Prune, calibration: str) -> list[str]:
    """The benchmarks of a study that measure the task of a calibration."""
    own_tasks = config.own_tasks(calibration)
    if not isinstance(study.tasks, list):
        return own_tasks
    return [task for task in own_tasks if task in study.tasks]


def _advise_on_templates(config: Configuration, root: Path) -> Iterator[str]:
    """Instruct models that are asked questions without the chat template they were trained with."""
    asked_models: set[str] = set()
    for study in config.studies.values():
        if _asks_questions(config, study):
            asked_models.update(study.models)

    without_template = [
        f"models.{name}.chat_template"
        for name, model in config.models.items()
        if name in asked_models
        and not model.chat_template
        and seems_conversational(model.source, root)
    ]
    if without_template:
        yield (
            f"{_list_names(without_template)}: named like a chat model, but questions are asked "
            "without its chat template. Write chat_template: true if you use the model with it."
        )


def seems_conversational(source: str, root: Path) -> bool:
    """Whether a model is named like a chat model and, if it is local, has a chat template."""
    if not _INSTRUCT.search(source):
        return False
    folder = root / source
    return not folder.is_dir() or checkpoint.has_chat_template(folder)


def _asks_questions(config: Configuration, study: Study) -> bool:
    """Whether a study calibrates on questions or measures tasks."""
    if not all(config.is_text(name) for name in study.calibrations):
        return True
    return isinstance(study, Prune) and bool(config.benchmarks.tasks) and study.tasks != []
