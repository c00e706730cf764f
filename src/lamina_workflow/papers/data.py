"""Data for the small study of a paper: its tasks and data sets, filled from a folder's files.

They keep the names, splits, fields and form of the paper's own (choices or written answers). Each
question or text is used only once.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lamina.data.files import find_question_fault, json_lines, read_text
from lamina.errors import LaminaError
from lamina.options.calibrations import TEMPLATE_FIELD

TASK_FOLDER = "workflow/tasks"
SPLITS = ("train", "validation", "test")
LEAST_WORDS = 20  # words of a text that counts as a document
# Tasks whose answers the model writes.
WRITTEN_TASKS = ("gsm8k", "mmlu_flan_cot_fewshot")

Raw = dict[str, Any]
"""A configuration or a part of it, as it is written."""


def write_data(raw: Raw, data: Path, folder: Path, n_samples: int) -> list[str]:
    """Write the data of all tasks and data sets from a folder's files; return each source."""
    pool = read_pool(data)
    notes = []
    for task in list_tasks(raw):
        source_name, questions = pool.deal_questions(task, 4 * n_samples)
        parts = {
            "train": questions[: 2 * n_samples],
            "validation": questions[2 * n_samples : 3 * n_samples],
            "test": questions[3 * n_samples :],
        }
        for split, records in parts.items():
            _write_lines(folder / f"data/{task}_{split}.jsonl", records)
        _write_task_file(folder, task)
        notes.append(f"{task}: questions of {source_name}")
    for name, dataset in _list_datasets(raw).items():
        for split in dataset.splits:
            documents = pool.deal_documents(2 * n_samples)
            records = [_fill_fields(document, dataset.fields) for document in documents]
            _write_lines(folder / f"data/{name}/{split}.jsonl", records)
        notes.append(f"{name}: texts of {data}")
    return notes


def list_tasks(raw: Raw) -> list[str]:
    """The tasks of lm-eval that calibrations and benchmarks name."""
    names: list[str] = list(raw["benchmarks"]["tasks"])
    for entry in raw["calibrations"].values():
        names += [entry["task"]] if "task" in entry else entry.get("tasks", [])
    return list(dict.fromkeys(names))


@dataclass
class DataSet:
    """The parts of a hub data set that are read."""

    fields: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)

    def add(self, entry: Raw, usual_split: str) -> None:
        """Add the fields and the split that an entry reads."""
        names = [entry.get("field", "text")]
        if "template" in entry:
            names = re.findall(TEMPLATE_FIELD, entry["template"])
        self.fields += [name for name in names if name not in self.fields]
        split = entry.get("split", usual_split)
        if split not in self.splits:
            self.splits.append(split)


def _list_datasets(raw: Raw) -> dict[str, DataSet]:
    """The data sets of the hub that calibrations and perplexities read, by their folders."""
    datasets: dict[str, DataSet] = {}
    sections = [(raw["calibrations"], "train"), (raw["benchmarks"].get("perplexity", {}), "test")]
    for entries, usual_split in sections:
        for entry in entries.values():
            if "hub" in entry:
                datasets.setdefault(name_dataset(entry), DataSet()).add(entry, usual_split)
    return datasets


def name_dataset(entry: Raw) -> str:
    """The folder of a data set, named after its id."""
    return str(entry["hub"]).replace("/", "-")


def _fill_fields(document: str, fields: Sequence[str]) -> dict[str, str]:
    """A record in which each field holds a part of the document, in order."""
    words = document.split(" ")
    share = -(-len(words) // len(fields))
    parts = [" ".join(words[start : start + share]) for start in range(0, len(words), share)]
    return dict(itertools.zip_longest(fields, parts[: len(fields)], fillvalue=""))


def _write_task_file(folder: Path, task: str) -> None:
    """Write the file of a task whose questions are next to the configuration."""
    settings: Raw = {
        "task": task,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {split: f"data/{task}_{split}.jsonl" for split in SPLITS}},
        "training_split": "train",
        "validation_split": "validation",
        "test_split": "test",
        "fewshot_split": "train",
        "doc_to_text": "{{query}}",
        "target_delimiter": " ",
    }
    if task in WRITTEN_TASKS:
        metrics = ["exact_match"]
        settings |= {
            "output_type": "generate_until",
            "doc_to_target": "{{choices[gold]}}",
            "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 8},
        }
    else:
        metrics = ["acc", "acc_norm"]
        settings |= {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold",
        }
    settings["metric_list"] = [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics
    ]
    file = folder / TASK_FOLDER / f"{task}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def _write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    file.write_text("".join(lines), encoding="utf-8")


class DataPool:
    """The questions and texts of a folder, each dealt once.

    A task takes the questions of the file with its name (apart from `_` and `-`), else those of the
    file with the most questions left.
    """

    def __init__(self, questions: Mapping[str, list[Raw]], documents: list[str]) -> None:
        self.questions = {name: list(records) for name, records in questions.items()}
        self.documents = list(documents)

    def deal_questions(self, task: str, n_questions: int) -> tuple[str, list[Raw]]:
        """The name of a file, and its next questions.

        Raises LaminaError if no file has that many left.
        """
        namesakes = [name for name in self.questions if _plain(name) == _plain(task)]
        fullest = sorted(self.questions, key=lambda name: (-len(self.questions[name]), name))
        for name in [*namesakes, *fullest]:
            records = self.questions[name]
            if len(records) >= n_questions:
                self.questions[name] = records[n_questions:]
                return name, records[:n_questions]
        raise LaminaError(
            f"--data: no file has {n_questions} questions left for task '{task}'. Give more "
            "questions, or fewer --samples."
        )

    def deal_documents(self, n_documents: int) -> list[str]:
        """The next texts.

        Raises LaminaError if there are not that many left.
        """
        if len(self.documents) < n_documents:
            raise LaminaError(
                f"--data: {n_documents} texts of at least {LEAST_WORDS} words are needed, but only "
                f"{len(self.documents)} are left. Give more texts, or fewer --samples."
            )
        dealt = self.documents[:n_documents]
        self.documents = self.documents[n_documents:]
        return dealt


def _plain(name: str) -> str:
    return re.sub("[_-]", "", name.removesuffix(".jsonl"))


def read_pool(folder: Path) -> DataPool:
    """The questions and texts of the files of a folder, without near duplicates.

    Raises LaminaError if there is no such folder.
    """
    if not folder.is_dir():
        raise LaminaError(f"--data: there is no folder {folder}.")
    questions: dict[str, list[Raw]] = {}
    documents: list[str] = []
    for file in sorted(folder.iterdir()):
        if file.suffix == ".jsonl":
            records = list(_read_records(file))
            asked = [record for record in records if find_question_fault(record) is None]
            if asked:
                questions[file.name] = asked
            documents += [record["text"] for record in records if _is_document(record)]
        elif file.suffix == ".json":
            values = json.loads(file.read_text(encoding="utf-8"))
            texts = [{"text": value} for value in values] if isinstance(values, list) else []
            documents += [record["text"] for record in texts if _is_document(record)]
    return DataPool(_keep_different_questions(questions), _keep_different(documents))


def _read_records(file: Path) -> Iterator[Raw]:
    text = read_text(file, "--data", "a .jsonl file")
    for _, record in json_lines(text, f"--data: {file}", "Write a JSON object in each line."):
        if isinstance(record, dict):
            yield record


def _is_document(record: Raw) -> bool:
    text = record.get("text")
    return isinstance(text, str) and len(text.split()) >= LEAST_WORDS


def _keep_different_questions(questions: Mapping[str, list[Raw]]) -> dict[str, list[Raw]]:
    """The questions without near duplicates of earlier ones, in any file."""
    flat = [(name, record) for name, records in questions.items() for record in records]
    kept = _find_different([(record["query"], record["choices"]) for _, record in flat])
    different: dict[str, list[Raw]] = {name: [] for name in questions}
    for index in kept:
        name, record = flat[index]
        different[name].append({key: record[key] for key in ("query", "choices", "gold")})
    return different


def _keep_different(documents: Sequence[str]) -> list[str]:
    return [documents[index] for index in _find_different([(text, ()) for text in documents])]


def _find_different(documents: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """The indices of documents that are no copy or near duplicate of an earlier one."""
    from lamina.data.overlap import document_hash, find_shared_pairs, hash_word_runs

    hashes = [document_hash(*document) for document in documents]
    hashed = list(zip(hashes, [hash_word_runs(*document) for document in documents], strict=True))
    first, second, is_near = find_shared_pairs(hashed, hashed)
    pairs = zip(first[is_near], second[is_near], strict=True)
    copies = {int(later) for earlier, later in pairs if earlier < later}
    seen: set[str] = set()
    different = []
    for index, document in enumerate(hashes):
        if index not in copies and document not in seen:
            different.append(index)
        seen.add(document)
    return different
