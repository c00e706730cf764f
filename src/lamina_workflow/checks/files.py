"""Checks of local files before the first job.

They cover models, tasks, texts, questions, and what fits into a model's context.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path

from lamina.data import files, task_files
from lamina.data.documents import check_folder, check_range, corpus_file, read_documents
from lamina.diagnosis.patching import Patching
from lamina.diagnosis.probe import Probe
from lamina.errors import LaminaError
from lamina.models import checkpoint, gguf
from lamina.options.benchmarks import HubEntry, TextEntry
from lamina.options.calibrations import CORPUS, Choices, Hub, HubTexts, Text
from lamina.options.explain import join_words
from lamina.options.models import Model
from lamina.options.repairs import OWN
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune, Study
from lamina_workflow.study import requests

# Bytes of a data file that is read together with the configuration. Larger ones are left to jobs.
LARGEST = 64 << 20


def model_key(config: Configuration, model: str) -> str:
    """The key of a model in the configuration: under `models`, or under `donors` for a sibling."""
    section = "donors" if model in config.donors else "models"
    return f"{section}.{model}"


def describe_model(key: str, model: Model, root: Path) -> Model:
    """Fill in the layers and the family of a model from its folder; a hub model stays unchanged.

    Raises LaminaError if there is no such folder, it holds no model, or the entry contradicts it.
    """
    entry_key = f"{key}.source"
    folder = root / model.source
    if gguf.is_gguf(model.source):
        _check_file(entry_key, model.source, root, "a GGUF file")
        n_layers, _ = gguf.read_shape(folder, entry_key)
        _check_stated(key, "layers", model.layers, n_layers, model.source)
        return model.model_copy(update={"layers": n_layers})
    if folder.is_file():
        raise LaminaError(
            f"{entry_key}: '{model.source}' is a file. Write the folder of the model that it "
            "belongs to."
        )
    if not folder.is_dir():
        _check_hub_id(
            entry_key, model.source, model.revision, "config.json and safetensors weights"
        )
        return model
    return _describe_folder(key, model, folder)


def _describe_folder(key: str, model: Model, folder: Path) -> Model:
    """Fill in the layers and the family that `config.json` in a folder states."""
    settings = checkpoint.read_settings(folder, f"{key}.source", model.source)
    n_layers = checkpoint.stated_depth(checkpoint.decoder_settings(settings))
    family = settings.get("model_type")

    config_file = f"{model.source}/config.json"
    _check_stated(key, "layers", model.layers, n_layers, config_file)
    _check_stated(key, "family", model.family, family, config_file)
    return model.model_copy(
        update={"layers": n_layers or model.layers, "family": family or model.family}
    )


def _check_stated(
    key: str, setting_name: str, stated_value: object, value_in_file: object, model_file: str
) -> None:
    """Refuse a value in the entry of a model that its file contradicts."""
    if stated_value and value_in_file and stated_value != value_in_file:
        raise LaminaError(
            f"{key}.{setting_name}: '{model_file}' says {value_in_file}, not {stated_value}. Leave "
            f"`{setting_name}` out."
        )


def _check_hub_id(entry_key: str, source: str, revision: str | None, content: str) -> None:
    """Refuse a source that is neither a folder nor an id of the hub with its revision.

    content: What a folder should hold, for the message.
    """
    is_id = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if is_id and revision:
        return
    alternative = ", or a hub id of the form 'organisation/name' with its revision"
    if is_id:
        alternative = "; if it is a hub id, add `revision: <commit, tag or branch>`"
    raise LaminaError(
        f"{entry_key}: there is no folder '{source}'. Write the path of a folder with "
        f"{content}{alternative}."
    )


def check_files(config: Configuration, root: Path) -> None:
    """Refuse a configuration that cannot run with the files under `root`.

    All other checks come before this one.

    Raises LaminaError if a file does not fit; the message names the key, the file, and the position
    of the fault in the file.
    """
    data_files = DataFiles(root)
    _check_tasks(config, root)
    _check_contexts(config, _check_models(config, root))
    _check_calibrations(config, root, data_files)
    _check_diagnoses(config, root)
    _check_benchmarks(config, data_files)


def _check_models(config: Configuration, root: Path) -> dict[str, int | None]:
    """Refuse folders that no job could load.

    Returns the context of each local model in tokens, None where its file states none.
    """
    contexts: dict[str, int | None] = {}
    for name, model in config.models.items():
        key = model_key(config, name)
        entry_key = f"{key}.source"
        folder = root / model.source
        if gguf.is_gguf(model.source):
            _, contexts[name] = gguf.read_shape(folder, entry_key)
            continue
        if not folder.is_dir():
            continue
        settings = checkpoint.read_settings(folder, entry_key, model.source)
        checkpoint.check_loadable(folder, settings, entry_key, model.source)
        tensors = checkpoint.read_weights(folder, entry_key)
        checkpoint.check_floating(tensors, folder, settings, entry_key)
        checkpoint.check_tokenizer(folder, key, model.chat_template)
        contexts[name] = checkpoint.stated_context(settings)
    return contexts


def _check_tasks(config: Configuration, root: Path) -> None:
    """Refuse tasks that do not exist, unreadable task files, and Python that is not trusted."""
    for name, calibration in config.calibrations.items():
        entry_key = f"calibrations.{name}"
        for task in calibration.drawn:
            task_file_list = _check_task(
                entry_key, task, root, getattr(calibration, "trust_code", False)
            )
            if calibration.own:
                _check_answers_can_be_written(entry_key, task_file_list)
    for name, benchmark in config.benchmarks.tasks.items():
        if benchmark.choices is None:
            _check_task(f"benchmarks.tasks.{name}", name, root, benchmark.trust_code)


def _check_task(
    entry_key: str, task: str, root: Path, trusts_code: bool
) -> list[task_files.TaskFile]:
    """Refuse a task that cannot be read; returns the files under `root` that define it."""
    task_file_list = task_files.list_reached_files(task, task_files.find_task_folder(root))
    if not task_file_list:
        _check_lm_eval_has(entry_key, task)
    task_paths = [file.path for file in task_file_list]
    task_files.check_choices(task_paths)
    if not trusts_code:
        task_files.check_code(task_paths, entry_key)
    return task_file_list


def _check_lm_eval_has(entry_key: str, task: str) -> None:
    known_tasks = task_files.names_of_lm_eval()
    if task in known_tasks:
        return
    hint = "`lm_eval ls tasks` lists all."
    nearest_tasks = difflib.get_close_matches(task, sorted(known_tasks), 3)
    if nearest_tasks:
        hint = f"The nearest are: {', '.join(nearest_tasks)}."
    raise LaminaError(
        f"{entry_key}: there is no task '{task}', neither in workflow/tasks nor in lm-eval. {hint}"
    )


def _check_answers_can_be_written(
    entry_key: str, task_file_list: list[task_files.TaskFile]
) -> None:
    """Refuse tasks of a kind whose answers the model cannot write."""
    for task_file in task_file_list:
        output_type = task_file.keys.get("output_type")
        if output_type:
            task_files.check_written(str(task_file.keys.get("task")), output_type, entry_key)


def _check_calibrations(config: Configuration, root: Path, data_files: "DataFiles") -> None:
    for name, calibration in config.calibrations.items():
        entry_key = f"calibrations.{name}"
        if isinstance(calibration, Text):
            data_files.check_text(entry_key, calibration)
        if isinstance(calibration, Hub):
            _check_hub_texts(entry_key, calibration, root)
        if isinstance(calibration, Choices):
            file = calibration.choices
            n_questions = data_files.count_questions(entry_key, file)
            files.check_limit(calibration.limit, n_questions, f"{entry_key}.limit", file)
            files.check_examples(
                calibration.num_fewshot, n_questions, f"{entry_key}.num_fewshot", file
            )


def _check_hub_texts(entry_key: str, entry: HubTexts, root: Path) -> None:
    if (root / entry.hub).is_dir():
        check_folder(entry, root, entry_key)
    else:
        _check_hub_id(f"{entry_key}.hub", entry.hub, entry.revision, "a data set's files")


def _check_diagnoses(config: Configuration, root: Path) -> None:
    for name, diagnosis in config.diagnoses.items():
        entry_key = f"diagnoses.{name}.file"
        if isinstance(diagnosis, Probe):
            files.read_labelled(root / diagnosis.file, entry_key, diagnosis.folds)
        if isinstance(diagnosis, Patching):
            files.read_pairs(root / diagnosis.file, entry_key)


def _check_benchmarks(config: Configuration, data_files: "DataFiles") -> None:
    for name, text in config.benchmarks.perplexity.items():
        entry_key = f"benchmarks.perplexity.{name}"
        if isinstance(text, HubEntry):
            _check_hub_texts(entry_key, text, data_files.root)
        if isinstance(text, TextEntry):
            data_files.check_text(entry_key, text)
    for name, task in config.benchmarks.tasks.items():
        if task.choices is None:
            continue
        entry_key = f"benchmarks.tasks.{name}"
        n_questions = data_files.count_questions(entry_key, task.choices)
        files.check_examples(
            task.num_fewshot, n_questions, f"{entry_key}.num_fewshot", task.choices
        )


class DataFiles:
    """Texts and questions under a folder. A file that several entries use is read once per form."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # By the file, and by whether blank documents count.
        self._n_documents: dict[tuple[Path, bool], int] = {}
        self._n_questions: dict[Path, int] = {}

    def check_text(self, entry_key: str, entry: Text | TextEntry) -> None:
        """Refuse a text that is missing, cannot be read, or has fewer documents than wanted."""
        path = corpus_file(entry.text, entry.split, self.root)
        if entry.text == CORPUS:
            corpus_splits = _corpus_splits(path.parent)
            if not corpus_splits:  # a folder without the embedded corpus has nothing to check
                return
            _check_split(entry_key, entry, corpus_splits)
        else:
            _check_file(
                f"{entry_key}.text",
                entry.text,
                self.root,
                f"a .json, .jsonl or .txt file, or {CORPUS}",
            )
        if path.stat().st_size > LARGEST:
            return

        keeps_blank = entry.joined is not None
        if (path, keeps_blank) not in self._n_documents:
            document_texts = read_documents(path, None, entry_key, keeps_blank)
            self._n_documents[path, keeps_blank] = len(document_texts)
        check_range(entry.documents, self._n_documents[path, keeps_blank], path, entry_key)

    def count_questions(self, entry_key: str, file: str) -> int | None:
        """The number of questions in a file; None if it is too large to read here."""
        path = self.root / file
        form = "a .jsonl file with query, choices and gold in each line"
        _check_file(f"{entry_key}.choices", file, self.root, form)
        if path.stat().st_size > LARGEST:
            return None
        if path not in self._n_questions:
            self._n_questions[path] = len(files.read_questions(path, f"{entry_key}.choices"))
        return self._n_questions[path]


def _corpus_splits(folder: Path) -> list[str]:
    """The splits of the embedded corpus, from the names of its files."""
    corpus_files = folder.glob("corpus_*.jsonl")
    return sorted(file.stem.removeprefix("corpus_") for file in corpus_files)


def _check_split(entry_key: str, entry: Text | TextEntry, corpus_splits: list[str]) -> None:
    if entry.split in corpus_splits:
        return
    allowed_splits = corpus_splits
    if isinstance(entry, Text):
        allowed_splits = [split for split in corpus_splits if split != "test"]
    raise LaminaError(
        f"{entry_key}.split: {CORPUS} has no split '{entry.split}'. Write "
        f"{join_words(allowed_splits)}."
    )


def _check_file(entry_key: str, file: str, root: Path, file_form: str) -> None:
    """Refuse a file that does not exist; `file_form` says in the message what it should be."""
    if not (root / file).is_file():
        raise LaminaError(
            f"{entry_key}: there is no file '{file}' in {root}. Write the path of {file_form}."
        )


def _check_contexts(config: Configuration, context_by_model: Mapping[str, int | None]) -> None:
    """Refuse texts and prompts that are longer than the context of a model in a study.

    Longer questions are allowed: they are cut from the left, as in lm-eval.

    context_by_model: Contexts in tokens, None or missing where only the jobs can know them.
    """
    for study in config.studies.values():
        for model in study.models:
            context_limit = context_by_model.get(model)
            _check_sample_lengths(config, study, model, context_limit)
            if isinstance(study, Prune):
                _check_benchmark_lengths(config, model, context_limit)


def _check_sample_lengths(
    config: Configuration, study: Study, model: str, context_limit: int | None
) -> None:
    extra_names = _extra_calibrations(config, study).difference(study.calibrations)
    for name in [*study.calibrations, *sorted(extra_names)]:
        for calibration, entry in config.parts(name).items():
            if isinstance(entry, Text | Hub):
                checkpoint.check_fits(
                    f"calibrations.{calibration}.length", entry.length, context_limit, model
                )


def _check_benchmark_lengths(config: Configuration, model: str, context_limit: int | None) -> None:
    # The base model is measured on every text, whichever texts the study names.
    for name, text in config.benchmarks.perplexity.items():
        checkpoint.check_fits(
            f"benchmarks.perplexity.{name}.window", text.window, context_limit, model
        )
    efficiency = config.benchmarks.efficiency
    if efficiency:
        longest_prompt = max(load.prompt for load in efficiency.loads)
        checkpoint.check_generation(longest_prompt, efficiency.generate, context_limit, model)


def _extra_calibrations(config: Configuration, study: Study) -> set[str]:
    """The calibrations that the study's repairs, healings and selectors name themselves."""
    if not isinstance(study, Prune):
        return set()
    names: set[str] = set()
    for selector in study.selectors:
        names |= requests.chosen_on(config, OWN, selector)
    for repair in study.repairs:
        names.update(requests.fitted_on(config, OWN, repair))
    for healing in study.healings:
        names.update(requests.trained_on(config, OWN, healing))
    return names - {OWN}
