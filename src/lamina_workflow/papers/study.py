"""The study behind `lamina paper NAME`: some studies of a paper, or all on one small model.

With `--small`, the configuration of `config/papers` is rewritten by the rules below. Nothing else
changes: names of calibrations, selectors, repairs, healings, tasks and studies stay, so that every
row of the paper's tables appears.

- Models: every study has the one model, `small`, in place of its own.
- Sizes: a number of layers becomes the same share of the small model's, of `DEPTH` layers at most
  (rounded down, at least 1). `protect` and `layers` of selectors become layers at the same depth.
- Amounts: at most `n_samples` questions or documents for each calibration and test, `LENGTH` tokens
  of a text, one solved example, two draws of a selector, `STEPS` steps of training in one pass,
  no 4-bit weights.
- Data, if a folder is given: tasks and data sets keep their names and their form (choices or
  written answers, fields, splits), but use questions and texts of that folder.

`expected.csv` next to the configuration lists the paper's numbers under the small model's source
and sizes, so that `what_papers_report` compares them.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lamina import paths
from lamina.errors import LaminaError
from lamina.options.entry import document_range
from lamina.options.models import Model
from lamina.options.selectors import share_of_layers
from lamina_workflow.checks.files import describe_model
from lamina_workflow.config.text import check_same_study
from lamina_workflow.papers.data import Raw, name_dataset, write_data

PAPERS = {
    "rethinking-layer-relevance": "2605.14075",
    "deeper-layers": "2403.17887",
    "ghosted-layers": "2605.15491",
}
"""Names of the configurations, with the papers' arXiv numbers."""
MODEL = "small"
CONFIGURATION = "config.yaml"
EXPECTED = "config/papers/expected.csv"
SAMPLES = 16
LENGTH = 64  # tokens of a text
STEPS = 4  # steps of a training
# Selectors that choose layers one by one need one more sweep for each further layer.
DEPTH = 12


@dataclass(frozen=True)
class SmallModel:
    """The model that replaces all others."""

    source: str
    n_layers: int

    def scale(self, n_layers: int, depth: int) -> int:
        """Scale `n_layers` of `depth` layers to the same share of this model's layers."""
        return n_layers * self.n_layers // depth

    def scale_size(self, size: int | str, depth: int) -> int:
        """The number of layers that replaces `size`, a number or a share, of `depth` layers."""
        counted_layers = min(self.n_layers, DEPTH)
        if isinstance(size, str):
            return share_of_layers(size, counted_layers)
        return max(1, size * counted_layers // depth)


@dataclass(frozen=True)
class PaperRequest:
    """A user's request to `lamina paper`."""

    name: str
    studies: tuple[str, ...] = ()
    """Names of the studies that run; empty for all."""
    small: str | None = None
    """A folder with config.json, or a GGUF file, that replaces all models."""
    data: Path | None = None
    """With `small`: a folder of questions (`query`, `choices`, `gold` in lines of JSON) and texts.
    None to read the paper's own from the hub."""
    n_samples: int = SAMPLES


def name_folder(request: PaperRequest) -> Path:
    """The default folder for a study of this paper."""
    return Path("-".join(["lamina", request.name, *request.studies]))


def write_paper(request: PaperRequest, folder: Path) -> list[str]:
    """Write the configuration of a request into a folder, and describe its content in sentences.

    A folder with the same configuration is used again, so that a run continues.

    Raises LaminaError if there is no such paper, study or model, the data do not suffice, or the
    folder holds another study.
    """
    raw = _keep_studies(read_paper(request.name), request.studies)
    file = folder / CONFIGURATION
    notes = [f"The study is {file}. To change it: edit it, then lamina run."]
    if request.small is None:
        if request.data is not None:
            raise LaminaError("--data: this needs --small. Add the small model, or leave it out.")
        _write_configuration(file, _format(request, raw))
        return notes

    small_model = _read_model(request.small)
    small = shrink(raw, small_model, request.n_samples, request.data is not None)
    text = _format(request, small)
    check_same_study(file, text)
    notes.append(f"Every model of the paper is {small_model.source}.")
    # The configuration is written last. If it is missing, the data are written again.
    if request.data is not None and not file.exists():
        notes += write_data(raw, request.data, folder, request.n_samples)
    write_expected(PAPERS[request.name], raw, small_model, folder / EXPECTED)
    _write_configuration(file, text)
    return notes


def _keep_studies(raw: Raw, names: Sequence[str]) -> Raw:
    """The configuration reduced to some of its studies and their models.

    Raises LaminaError if there is no such study.
    """
    for name in names:
        if name not in raw["studies"]:
            raise LaminaError(
                f"--study: the paper has no study '{name}'. Write one of: "
                f"{', '.join(raw['studies'])}."
            )
    if not names:
        return raw
    studies = {name: raw["studies"][name] for name in names}
    used_models = {model for study in studies.values() for model in study["models"]}
    models = {name: model for name, model in raw["models"].items() if name in used_models}
    return raw | {"models": models, "studies": studies}


def _write_configuration(file: Path, text: str) -> None:
    """Write a configuration into a new folder, or check that the same one is there."""
    check_same_study(file, text)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def read_paper(name: str) -> Raw:
    """The configuration of a paper, unchanged.

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

    has_data: Whether data sets of the hub are folders next to the configuration.
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
    """A calibration with few samples; the parts of a mixture get equal shares."""
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
        small["hub"] = f"data/{name_dataset(entry)}"
        for key in ("name", "revision"):
            small.pop(key, None)
    return small


def _scale_selector(entry: Raw, small_model: SmallModel, depth: int) -> Raw:
    """A selector with few draws, whose layers are at the same depth of the small model."""
    scaled = dict(entry)
    if "replicates" in entry:
        scaled["replicates"] = 2
    for key in ("layers", "protect"):
        if key in entry:
            indices = [_scale_index(index, small_model, depth) for index in entry[key]]
            scaled[key] = list(dict.fromkeys(indices))
    return scaled


def _scale_index(index: int, small_model: SmallModel, depth: int) -> int:
    """The layer at the same share of the depth; negative indices count from the end."""
    if index >= 0:
        return small_model.scale(index, depth)
    return -max(1, small_model.scale(-index, depth))


def _shorten_healing(entry: Raw) -> Raw:
    """A training of one pass and few steps, on weights that are not in 4 bits.

    It has two passes if the scores of several are requested.
    """
    short = {key: value for key, value in entry.items() if key != "quantise"}
    short |= {"epochs": 1, "max_steps": STEPS, "batch": 4}
    if "checkpoints" in entry:
        short |= {"epochs": 2, "checkpoints": [1]}
    return short


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
        efficiency = benchmarks["efficiency"]
        small["efficiency"] = {
            "prompt": [32, 64] if isinstance(efficiency["prompt"], list) else 32,
            "generate": 8,
            "batch": [1, 2] if isinstance(efficiency["batch"], list) else 1,
            "repeats": 2,
        }
    return small


def _move_study(study: Raw, small_model: SmallModel, depth: int) -> Raw:
    """A study moved from models of `depth` layers to the small model."""
    moved = study | {"models": [MODEL]}
    if "removed" in study:
        sizes = [small_model.scale_size(size, depth) for size in study["removed"]]
        moved["removed"] = list(dict.fromkeys(sizes))
    return moved


def _format(request: PaperRequest, configuration: Raw) -> str:
    """The text of the configuration file."""
    changes = "" if request.small is None else " on a small model, by the rules of docs/papers.md"
    header = (
        f"# Written by `lamina paper`: config/papers/{request.name}.yaml{changes}.\n"
        "# Edit it and run it: lamina run\n"
    )
    return header + yaml.safe_dump(
        configuration, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000
    )


def write_expected(paper: str, raw: Raw, small_model: SmallModel, file: Path) -> None:
    """Write the numbers of a paper, under the small model's source and its share of the layers.

    Those of models that the configuration lacks are left out.
    """
    depths = {model["source"]: model["layers"] for model in raw["models"].values()}
    with Path(paths.PROJECT, EXPECTED).open(encoding="utf-8", newline="") as published:
        reader = csv.DictReader(published)
        columns = reader.fieldnames or []
        rows = [row for row in reader if row["paper"] == paper and row["source"] in depths]
    for row in rows:
        if row["removed"] != "0":
            depth = depths[row["source"]]
            row["removed"] = str(small_model.scale_size(int(row["removed"]), depth))
        row["source"] = small_model.source

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as written:
        writer = csv.DictWriter(written, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
