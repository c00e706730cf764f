"""Checks of local files before the first job: models, texts, questions, and what fits into a model's context."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamina.config.benchmarks import Perplexity
from lamina.config.calibrations import CORPUS, Choices, Hub, Text
from lamina.config.configuration import Configuration
from lamina.config.explain import listed
from lamina.config.models import Model
from lamina.config.repairs import OWN
from lamina.config.studies import Prune, Study
from lamina.data import files, task_files
from lamina.data.documents import check_folder, check_range, corpus_file, read_documents
from lamina.diagnosis.patching import Patching
from lamina.diagnosis.probe import Probe
from lamina.errors import LaminaError
from lamina.models import checkpoint, gguf

LARGEST = (
    64 << 20
)  # Bytes of a data file that is read when the configuration is; larger ones are left to the jobs.


def entry_of(config: Configuration, model: str) -> str:
    """The key of a model in the configuration: under `models`, or where its layers are lent."""
    return f"{'donors' if model in config.donors else 'models'}.{model}"


def described(entry: str, model: Model, root: Path) -> Model:
    """The entry of a model with the layers and the family that its folder holds; a hub model stays unchanged.

    Raises LaminaError if there is no such folder, it holds no model, or it contradicts the entry.
    """
    where, source = f"{entry}.source", model.source
    folder = root / source
    if gguf.is_gguf(source):
        _check_there(where, source, root, "a GGUF file")
        depth = gguf.shape(folder, where)[0]
        if model.layers not in (None, depth):
            raise LaminaError(
                f"{entry}.layers: '{source}' says {depth}, not {model.layers}. Leave `layers` out."
            )
        return model.model_copy(update={"layers": depth})
    if folder.is_file():
        raise LaminaError(
            f"{where}: '{source}' is a file. Write the folder of the model that it belongs to."
        )
    if not folder.is_dir():
        _check_hub_id(where, source, model.revision, "config.json and safetensors weights")
        return model
    settings = checkpoint.read_settings(folder, where, source)
    decoder = checkpoint.decoder_settings(settings)
    layers = next(
        (decoder[key] for key in checkpoint.LAYER_KEYS if isinstance(decoder.get(key), int)), None
    )
    read: dict[str, Any] = {"layers": layers, "family": settings.get("model_type")}
    for key, value in read.items():
        stated = getattr(model, key)
        if value and stated and value != stated:
            raise LaminaError(
                f"{entry}.{key}: '{source}/config.json' says {value}, not {stated}. Leave `{key}` out."
            )
    return model.model_copy(
        update={key: value or getattr(model, key) for key, value in read.items()}
    )


def _check_hub_id(where: str, source: str, revision: str | None, files: str) -> None:
    is_id = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if not is_id or not revision:
        other = "; if it is a hub id, add `revision: <commit, tag or branch>`"
        other = (
            other if is_id else ", or a hub id of the form 'organisation/name' with its revision"
        )
        raise LaminaError(
            f"{where}: there is no folder '{source}'. Write the path of a folder with {files}{other}."
        )


def check(config: Configuration, root: Path) -> None:
    """Refuse a configuration that cannot run with the files under `root`; called after all other checks.

    Raises LaminaError if a file does not fit; the message names the key, the file, and where in it the fault is.
    """
    _check_code(config, root)
    contexts: dict[str, int | None] = {}
    for name, model in config.models.items():
        folder, where = root / model.source, f"{entry_of(config, name)}.source"
        if gguf.is_gguf(model.source):
            contexts[name] = gguf.shape(folder, where)[1]
        elif folder.is_dir():
            settings = checkpoint.read_settings(folder, where, model.source)
            checkpoint.check_loadable(folder, settings, where, model.source)
            checkpoint.check_names(checkpoint.read_weights(folder, where), folder, settings, where)
            checkpoint.check_tokenizer(folder, entry_of(config, name), model.chat_template)
            contexts[name] = checkpoint.context(settings)
    _check_contexts(config, contexts)
    counts: dict[
        tuple[str, Path], int
    ] = {}  # A file of several entries is read once for each form.
    for name, entry in config.calibrations.items():
        where = f"calibrations.{name}"
        if isinstance(entry, Text):
            _check_text(where, entry, root, counts)
        if isinstance(entry, Hub):
            if (root / entry.hub).is_dir():
                check_folder(entry, root, where)
            else:
                _check_hub_id(f"{where}.hub", entry.hub, entry.revision, "a data set's files")
        if isinstance(entry, Choices):
            count = _count_questions(where, entry.choices, root, counts)
            files.check_limit(entry.limit, count, f"{where}.limit", entry.choices)
            files.check_examples(entry.num_fewshot, count, f"{where}.num_fewshot", entry.choices)
    for name, diagnosis in config.diagnoses.items():
        where = f"diagnoses.{name}.file"
        if isinstance(diagnosis, Probe):
            files.labelled(root / diagnosis.file, where, diagnosis.folds)
        if isinstance(diagnosis, Patching):
            files.pairs(root / diagnosis.file, where)
    for name, text in config.benchmarks.perplexity.items():
        _check_text(f"benchmarks.perplexity.{name}", text, root, counts)
    for name, task in config.benchmarks.tasks.items():
        if task.choices is not None:
            where = f"benchmarks.tasks.{name}"
            count = _count_questions(where, task.choices, root, counts)
            files.check_examples(task.num_fewshot, count, f"{where}.num_fewshot", task.choices)


def _check_code(config: Configuration, root: Path) -> None:
    """Refuse tasks that nobody has, files that cannot be read, and those whose Python their entry does not trust."""
    entries: dict[str, tuple[list[str], Any]]
    entries = {
        f"calibrations.{name}": (entry.drawn, entry) for name, entry in config.calibrations.items()
    }
    entries |= {
        f"benchmarks.tasks.{name}": ([name], entry)
        for name, entry in config.benchmarks.tasks.items()
    }
    for where, (names, entry) in entries.items():
        for name in [] if getattr(entry, "choices", None) else names:
            reached = task_files.reached(name, task_files.folder(root))
            if not reached and name not in (known := task_files.names_of_lm_eval()):
                near = difflib.get_close_matches(name, sorted(known), 3)
                hint = (
                    f"The nearest are: {', '.join(near)}."
                    if near
                    else "`lm_eval ls tasks` lists all."
                )
                raise LaminaError(
                    f"{where}: there is no task '{name}', neither in workflow/tasks nor in lm-eval. {hint}"
                )
            task_files.check_choices([file.path for file in reached])
            if not getattr(entry, "trust_code", False):
                task_files.check_code([file.path for file in reached], where)
            for file in reached if getattr(entry, "own", False) else ():
                if kind := file.keys.get("output_type"):
                    task_files.check_written(str(file.keys.get("task")), kind, where)


def _check_text(
    where: str, entry: Text | Perplexity, root: Path, counts: dict[tuple[str, Path], int]
) -> None:
    path = corpus_file(entry.text, entry.split, root)
    if entry.text == CORPUS:
        splits = sorted(
            file.stem.removeprefix("corpus_") for file in path.parent.glob("corpus_*.jsonl")
        )
        if entry.split not in splits:
            if splits:
                may = [
                    split for split in splits if split != "test" or isinstance(entry, Perplexity)
                ]
                raise LaminaError(
                    f"{where}.split: {CORPUS} has no split '{entry.split}'. Write {listed(may)}."
                )
            return
    else:
        _check_there(
            f"{where}.text", entry.text, root, f"a .json, .jsonl or .txt file, or {CORPUS}"
        )
    if path.stat().st_size <= LARGEST:
        blank = isinstance(entry, Perplexity) and entry.joined is not None
        if (key := (f"text, blank: {blank}", path)) not in counts:
            counts[key] = len(read_documents(path, None, where, blank))
        check_range(entry.documents, counts[key], path, where)


def _count_questions(
    where: str, file: str, root: Path, counts: dict[tuple[str, Path], int]
) -> int | None:
    """The number of questions in a file; None where it is too large to read here."""
    path = root / file
    _check_there(
        f"{where}.choices", file, root, "a .jsonl file with query, choices and gold in each line"
    )
    if path.stat().st_size > LARGEST:
        return None
    if ("choices", path) not in counts:
        counts["choices", path] = len(files.read_questions(path, f"{where}.choices"))
    return counts["choices", path]


def _check_there(where: str, file: str, root: Path, form: str) -> None:
    if not (root / file).is_file():
        raise LaminaError(
            f"{where}: there is no file '{file}' in {root}. Write the path of {form}."
        )


def _check_contexts(config: Configuration, limits: Mapping[str, int | None]) -> None:
    """Refuse texts and prompts longer than the context of a model in a study; `limits` are None where jobs check it.

    Longer questions are no error: they are cut from the left, as lm-eval does.
    """
    for study in config.studies.values():
        for model in study.models:
            limit = limits.get(model)
            _check_calibrations(config, study, model, limit)
            if isinstance(study, Prune):
                # The unpruned model is measured on every text, whichever the study names.
                for name, text in config.benchmarks.perplexity.items():
                    checkpoint.check_fits(
                        f"benchmarks.perplexity.{name}.window", text.window, limit, model
                    )
                if efficiency := config.benchmarks.efficiency:
                    checkpoint.check_generation(
                        efficiency.prompt, efficiency.generate, limit, model
                    )


def _check_calibrations(config: Configuration, study: Study, model: str, limit: int | None) -> None:
    mending = {
        *getattr(study, "repairs", []),
        *(config.selectors[s].repair for s in getattr(study, "selectors", [])),
    }
    healing = set(getattr(study, "healings", [])) - {"none"}
    added = {name for each in mending - {"none", None} for name in config.repairs[each].data}
    added |= {name for each in healing for name in config.healings[each].weights(OWN)}
    added |= {name for s in getattr(study, "selectors", []) for name in config.selectors[s].also}
    added -= {OWN}
    for name in [*study.calibrations, *sorted(added.difference(study.calibrations))]:
        for part, entry in config.parts(name).items():
            if isinstance(entry, Text | Hub):
                checkpoint.check_fits(f"calibrations.{part}.length", entry.length, limit, model)
