"""The study behind `lamina paper NAME --small MODEL`: a paper's configuration on one small model.

The configuration of `config/papers` is rewritten by these rules, and nothing else changes: names of
calibrations, selectors, repairs, healings, tasks and studies stay, so that every row of the paper's
tables comes out.

- Models: every study has the one model, `small`, in the place of its own.
- Sizes: a number of layers becomes the same share of the small model's (rounded down, at least 1);
  so do `protect` and `layers` of selectors.
- Amounts: at most `n_samples` questions or documents for each calibration and test, `LENGTH` tokens
  of a text, one solved example, `STEPS` steps of training in one pass, without 4 bits.
- Data, where a folder is given: tasks and data sets keep their names and their form (choices or
  written answers, fields, splits), on questions and texts of that folder.

`expected.csv` beside the configuration has the paper's numbers under the small model's source and
sizes, so that `what_papers_report` compares them.
"""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lamina import paths
from lamina.data.files import choices_fault
from lamina.errors import LaminaError
from lamina.options.calibrations import TEMPLATE_FIELD
from lamina.options.entry import document_range
from lamina.options.models import Model
from lamina_workflow.checks.files import describe_model

PAPERS = {
    "rethinking-layer-relevance": "2605.14075",
    "deeper-layers": "2403.17887",
    "ghosted-layers": "2605.15491",
}
"""Names of the configurations, with the number of the paper on arXiv."""
MODEL = "small"
CONFIGURATION = "config.yaml"
EXPECTED = "config/papers/expected.csv"
TASK_FOLDER = "workflow/tasks"
SAMPLES = 16
LENGTH = 64  # tokens of a text
LEAST_WORDS = 20  # of a text that counts as a document
STEPS = 4  # of a training
SPLITS = ("train", "validation", "test")
# Tasks whose answers the model writes.
WRITTEN_TASKS = ("gsm8k", "mmlu_flan_cot_fewshot")

Raw = dict[str, Any]


@dataclass(frozen=True)
class SmallModel:
    """The model that takes the place of all others."""

    source: str
    n_layers: int

    def scale(self, n_layers: int, depth: int) -> int:
        """The share that `n_layers` are of `depth` layers, in layers of this model."""
        return n_layers * self.n_layers // depth


def write_small_paper(
    name: str, model: str, data: Path | None, folder: Path, n_samples: int = SAMPLES
) -> list[str]:
    """Write the study of a paper on a small model into a folder, and say in sentences what it has.

    model: A folder with config.json, or a GGUF file.
    data: A folder of questions (`query`, `choices`, `gold` in lines of JSON) and texts; None asks
        the hub for the paper's own.

    Raises LaminaError if there is no such model, the data do not suffice, or the folder holds
        another study.
    """
    raw = read_paper(name)
    small_model = _read_model(model)
    text = _format(name, shrink(raw, small_model, n_samples, data is not None))
    file = folder / CONFIGURATION
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise LaminaError(
            f"{file} is another study, or was edited. To run it: cd {folder} && lamina run. To "
            "begin another one: --folder NAME"
        )
    notes = [f"The study is {file}. Every model of the paper is {small_model.source}."]
    if data is not None and not file.exists():
        notes += _write_data(raw, data, folder, n_samples)
    write_expected(PAPERS[name], raw, small_model, folder / EXPECTED)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return notes


def read_paper(name: str) -> Raw:
    """The configuration of a paper as it is written.

    Raises LaminaError if there is none of that name.
    """
    if name not in PAPERS:
        raise LaminaError(f"there is no paper '{name}'. Write one of: {', '.join(PAPERS)}.")
    raw: Raw = yaml.safe_load(Path(locate_paper(name)).read_text(encoding="utf-8"))
    return raw


def locate_paper(name: str) -> str:
    """The file of a paper's configuration."""
    return paths.locate(f"config/papers/{name}.yaml")


def shrink(raw: Raw, small_model: SmallModel, n_samples: int, has_data: bool) -> Raw:
    """The configuration on the small model, with few samples.

    has_data: Whether data sets of the hub are folders beside the configuration.
    """
    depths = {name: model["layers"] for name, model in raw["models"].items()}
    first_depth = next(iter(depths.values()))
    calibrations = {
        name: _shrink_calibration(entry, n_samples, has_data)
        for name, entry in raw["calibrations"].items()
    }
    selectors = {
        name: _scale_selector(entry, small_model, first_depth)
        for name, entry in raw["selectors"].items()
    }
    studies = {
        name: _move_study(study, small_model, depths[study["models"][0]])
        for name, study in raw["studies"].items()
    }
    return raw | {
        "models": {MODEL: {"source": small_model.source}},
        "calibrations": calibrations,
        "selectors": selectors,
        "healings": {name: _shorten_healing(entry) for name, entry in raw["healings"].items()},
        "benchmarks": _shrink_benchmarks(raw["benchmarks"], n_samples, has_data),
        "studies": studies,
    }


def _read_model(source: str) -> SmallModel:
    location = Path(source).expanduser()
    if not location.exists():
        raise LaminaError(f"--small: there is no {source}. Write a folder with config.json.")
    entry = describe_model("--small", Model(source=str(location.resolve())), Path.cwd())
    if entry.layers is None:
        raise LaminaError(f"--small: {source} does not say how many layers it has.")
    return SmallModel(entry.source, entry.layers)


def _shrink_calibration(entry: Raw, n_samples: int, has_data: bool) -> Raw:
    """A calibration with few samples; those of a mixture have equal shares."""
    small = dict(entry)
    if "mixture" in entry:
        return {"mixture": dict.fromkeys(entry["mixture"], 1), "limit": n_samples}
    if "fraction" in entry:
        small["fraction"] = 0.5
    if "task" in entry:
        small["limit"] = min(entry.get("limit") or n_samples, n_samples)
    if "num_fewshot" in entry:
        small["num_fewshot"] = min(entry["num_fewshot"], 1)
    if "hub" in entry:
        small = _shrink_texts(entry, n_samples, has_data)
        small["length"] = min(entry["length"], LENGTH)
    if "min_tokens" in entry:
        small["min_tokens"] = min(entry["min_tokens"], LENGTH // 2)
    return small


def _shrink_texts(entry: Raw, n_samples: int, has_data: bool) -> Raw:
    """The keys of a data set of the hub with few documents."""
    small = dict(entry)
    first, end = document_range(entry.get("documents"))
    n_documents = n_samples if end is None else min(end - first, n_samples)
    start = min(first, n_samples)
    small["documents"] = f"{start}:{start + n_documents}"
    if has_data:
        small["hub"] = f"data/{_folder_name(entry)}"
        for key in ("name", "revision"):
            small.pop(key, None)
    return small


def _scale_selector(entry: Raw, small_model: SmallModel, depth: int) -> Raw:
    """A selector whose layers are those at the same depth of the small model."""
    scaled = dict(entry)
    for key in ("layers", "protect"):
        if key in entry:
            indices = [_scale_index(index, small_model, depth) for index in entry[key]]
            scaled[key] = list(dict.fromkeys(indices))
    return scaled


def _scale_index(index: int, small_model: SmallModel, depth: int) -> int:
    """The layer at the same share of the depth; negative ones are counted from the end."""
    if index >= 0:
        return small_model.scale(index, depth)
    return -max(1, small_model.scale(-index, depth))


def _scale_size(size: Any, small_model: SmallModel, depth: int) -> Any:
    """A number of layers as the same share of the small model's; a percentage stays."""
    return max(1, small_model.scale(size, depth)) if isinstance(size, int) else size


def _shorten_healing(entry: Raw) -> Raw:
    """A training of one pass and few steps, beside weights that are not in 4 bits."""
    short = {key: value for key, value in entry.items() if key != "quantise"}
    return short | {"epochs": 1, "max_steps": STEPS, "batch": 4}


def _shrink_benchmarks(benchmarks: Raw, n_samples: int, has_data: bool) -> Raw:
    small = dict(benchmarks)
    small["tasks"] = {
        name: {"num_fewshot": min(task.get("num_fewshot", 0), 1), "limit": n_samples}
        for name, task in benchmarks["tasks"].items()
    }
    if "perplexity" in benchmarks:
        small["perplexity"] = {
            name: _shrink_texts(text, n_samples, has_data) | {"window": LENGTH}
            for name, text in benchmarks["perplexity"].items()
        }
    if "efficiency" in benchmarks:
        small["efficiency"] = {"prompt": 32, "generate": 8, "repeats": 2}
    return small


def _move_study(study: Raw, small_model: SmallModel, depth: int) -> Raw:
    """A study of the small model, whose models had `depth` layers."""
    moved = study | {"models": [MODEL]}
    if "removed" in study:
        sizes = [_scale_size(size, small_model, depth) for size in study["removed"]]
        moved["removed"] = list(dict.fromkeys(sizes))
    return moved


def _format(name: str, configuration: Raw) -> str:
    header = (
        f"# Written by `lamina paper {name} --small`: config/papers/{name}.yaml on a small model,\n"
        "# by the rules of docs/papers.md. Edit it and run it: lamina run\n"
    )
    return header + yaml.safe_dump(
        configuration, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000
    )


def write_expected(paper: str, raw: Raw, small_model: SmallModel, file: Path) -> None:
    """Write the numbers of a paper, under the small model's source and its share of the layers."""
    depths = {model["source"]: model["layers"] for model in raw["models"].values()}
    with Path(paths.PROJECT, EXPECTED).open(encoding="utf-8", newline="") as published:
        reader = csv.DictReader(published)
        columns = reader.fieldnames or []
        rows = [row for row in reader if row["paper"] == paper]
    for row in rows:
        if row["removed"] != "0":
            size = _scale_size(int(row["removed"]), small_model, depths[row["source"]])
            row["removed"] = str(size)
        row["source"] = small_model.source

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as written:
        writer = csv.DictWriter(written, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_data(raw: Raw, data: Path, folder: Path, n_samples: int) -> list[str]:
    """Write the data of all tasks and data sets from the files of a folder; what from which file."""
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
    for dataset, (fields, splits) in _list_datasets(raw).items():
        for split in splits:
            documents = pool.deal_documents(2 * n_samples)
            records = [_fill_fields(document, fields) for document in documents]
            _write_lines(folder / f"data/{dataset}/{split}.jsonl", records)
        notes.append(f"{dataset}: texts of {data}")
    return notes


def list_tasks(raw: Raw) -> list[str]:
    """The tasks of lm-eval that calibrations and benchmarks name."""
    names: list[str] = list(raw["benchmarks"]["tasks"])
    for entry in raw["calibrations"].values():
        names += [entry["task"]] if "task" in entry else entry.get("tasks", [])
    return list(dict.fromkeys(names))


def _list_datasets(raw: Raw) -> dict[str, tuple[list[str], list[str]]]:
    """Fields and splits of the data sets of the hub that are read, by the names of their folders."""
    datasets: dict[str, tuple[list[str], list[str]]] = {}
    texts = [*raw["calibrations"].values(), *raw["benchmarks"].get("perplexity", {}).values()]
    for entry, default_split in zip(
        texts, itertools.chain(["train"] * len(raw["calibrations"]), itertools.repeat("test"))
    ):
        if "hub" not in entry:
            continue
        fields, splits = datasets.setdefault(_folder_name(entry), ([], []))
        template = entry.get("template")
        entry_fields = re.findall(TEMPLATE_FIELD, template) if template else [entry.get("field")]
        fields += [field or "text" for field in entry_fields if (field or "text") not in fields]
        split = entry.get("split", default_split)
        if split not in splits:
            splits.append(split)
    return datasets


def _folder_name(entry: Raw) -> str:
    """The folder of a data set, after its id."""
    return str(entry["hub"]).replace("/", "-")


def _fill_fields(document: str, fields: Sequence[str]) -> dict[str, str]:
    """A record whose fields have a part of a document each, in order."""
    words = document.split(" ")
    share = -(-len(words) // len(fields))
    parts = [" ".join(words[start : start + share]) for start in range(0, len(words), share)]
    return dict(itertools.zip_longest(fields, parts[: len(fields)], fillvalue=""))


def _write_task_file(folder: Path, task: str) -> None:
    """Write the file of a task on the questions beside the configuration."""
    settings: Raw = {
        "task": task,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {split: f"data/{task}_{split}.jsonl" for split in SPLITS}
        },
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

    A task takes the questions of the file that has its name (apart from `_` and `-`), else of the
    file with the most questions left.
    """

    def __init__(self, questions: Mapping[str, list[Raw]], documents: list[str]) -> None:
        self.questions = {name: list(records) for name, records in questions.items()}
        self.documents = list(documents)

    def deal_questions(self, task: str, n_questions: int) -> tuple[str, list[Raw]]:
        """The name of a file, and its next questions.

        Raises LaminaError if no file has so many left.
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

        Raises LaminaError if there are not so many left.
        """
        if len(self.documents) < n_documents:
            raise LaminaError(
                f"--data: {n_documents} texts of at least {LEAST_WORDS} words are needed, and "
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
            asked = [record for record in records if _is_question(record)]
            if asked:
                questions[file.name] = asked
            documents += [record["text"] for record in records if _is_document(record)]
        elif file.suffix == ".json":
            values = json.loads(file.read_text(encoding="utf-8"))
            texts = [{"text": value} for value in values] if isinstance(values, list) else []
            documents += [record["text"] for record in texts if _is_document(record)]
    return DataPool(_keep_different_questions(questions), _keep_different(documents))


def _read_records(file: Path) -> Iterator[Raw]:
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if isinstance(record, dict):
            yield record


def _is_question(record: Raw) -> bool:
    choices = record.get("choices")
    return (
        isinstance(record.get("query"), str)
        and isinstance(record.get("gold"), int)
        and isinstance(choices, list)
        and choices_fault(choices) is None
    )


def _is_document(record: Raw) -> bool:
    text = record.get("text")
    return isinstance(text, str) and len(text.split()) >= LEAST_WORDS


def _keep_different_questions(questions: Mapping[str, list[Raw]]) -> dict[str, list[Raw]]:
    """The questions without those of which another one, in any file, is a near duplicate."""
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
    """The indices of documents of which no earlier one is a copy or a near duplicate."""
    from lamina.data.overlap import document_hash, find_shared_pairs, hash_word_runs

    hashes = [document_hash(*document) for document in documents]
    hashed = list(zip(hashes, [hash_word_runs(*document) for document in documents], strict=True))
    first, second, is_near = find_shared_pairs(hashed, hashed)
    copies = {
        int(later) for earlier, later in zip(first[is_near], second[is_near]) if earlier < later
    }
    seen: set[str] = set()
    different = []
    for index, document in enumerate(hashes):
        if index not in copies and document not in seen:
            different.append(index)
        seen.add(document)
    return different
