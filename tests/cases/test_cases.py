"""Inputs from the field: each folder is one, with its files and what is expected of it.

Folders in `valid` look odd and are right: none of them may be refused. `case.yaml` has these keys:

about
    What the input is, in a sentence.
config
    A configuration, or the sections of one that matter. `resources/reference` is the embedded
    model. A text is the name of a configuration file among the files, which is then read as a user
    wrote it.
files
    Files to write, by path. A text is written as it is, a mapping as YAML (as JSON under a name in
    .json), and a list as JSON lines, or as the rows of a .json, .csv, .tsv or .parquet file. A name
    that ends in .gz is compressed. Other files of the folder are copied. A folder `model` becomes a
    model: the embedded one with these files over it.
encodings
    How texts are encoded that are not UTF-8, by path.
settings
    Keys of model/config.json that differ from the embedded model's.
expected
    `refused`: what the message says (a regular expression). Or numbers: `calibrations` by name,
    with facts of the calibration, the `accuracy` of the model on it and its summed `loss`;
    `benchmarks` by name, with metrics, `n_cut` and `n_samples`.
meant
    What a person reads in the files, by calibration or benchmark: a list of texts, or of questions.
    `plain.py` counts the numbers on it with plain transformers, and they must be lamina's.
"""

import csv
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from lamina.data import lm_tasks
from lamina.data.documents import perplexity_texts
from lamina.data.prepare import prepare_calibration
from lamina.data.prompts import Style
from lamina.engine.sweep import sweep_units
from lamina.errors import LaminaError
from lamina.evaluation.perplexity import PerplexityBenchmark
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together
from lamina.models.load import load_model, load_tokenizer
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Hub, Text
from lamina_workflow.checks import load
from lamina_workflow.config import text
from lamina_workflow.config.configuration import Configuration
from tests import ROOT
from tests.cases import plain

FOLDER = Path(__file__).parent
CASES = sorted(
    str(file.parent.relative_to(FOLDER))
    for pattern in ("*/case.yaml", "valid/*/case.yaml")
    for file in FOLDER.glob(pattern)
)
Numbers = dict[str, dict[str, Any]]
"""Facts and metrics, by calibration or benchmark."""


def read_case(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load((FOLDER / name / "case.yaml").read_text(encoding="utf-8"))
    return case


def table_bytes(suffix: str, rows: list[Any]) -> bytes:
    """Rows as a file of the kind that a suffix says."""
    if suffix == ".json":
        return json.dumps(rows).encode()
    if suffix == ".parquet":
        stream = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), stream)
        return stream.getvalue()
    if suffix in (".csv", ".tsv"):
        table = io.StringIO()
        writer = csv.DictWriter(table, rows[0], delimiter="," if suffix == ".csv" else "\t")
        writer.writeheader()
        writer.writerows(rows)
        return table.getvalue().encode()
    return "\n".join(json.dumps(row) for row in rows).encode()


def write_file(path: Path, content: Any, encoding: str) -> None:
    """Write a file of a case as its name says."""
    is_compressed = path.suffix == ".gz"
    suffix = path.with_suffix("").suffix if is_compressed else path.suffix
    if isinstance(content, list):
        data = table_bytes(suffix, content)
    elif isinstance(content, str):
        data = content.encode(encoding)
    else:
        dump = json.dumps if suffix == ".json" else yaml.safe_dump
        data = dump(content).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if is_compressed else data)


def write_model(folder: Path, settings: dict[str, Any]) -> None:
    """The embedded model, with other settings."""
    shutil.copytree(ROOT / "resources/reference", folder, ignore=shutil.ignore_patterns("data"))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | settings))


def write_case(name: str, case: dict[str, Any], root: Path) -> None:
    """Put the files of a case under `root`."""
    (root / "resources").mkdir()
    (root / "resources/reference").symlink_to(ROOT / "resources/reference")
    shutil.copytree(ROOT / "workflow/tasks", root / "workflow/tasks")
    files = case.get("files", {})
    if "settings" in case or any(path.startswith("model/") for path in files):
        write_model(root / "model", case.get("settings", {}))
    shutil.copytree(FOLDER / name, root, dirs_exist_ok=True)
    for path, content in files.items():
        write_file(root / path, content, case.get("encodings", {}).get(path, "utf-8"))


def complete_config(sections: dict[str, Any]) -> dict[str, Any]:
    """A whole configuration: a study of everything that the sections name."""
    config = {"models": {"reference": {"source": "resources/reference"}}} | sections
    calibrations = sorted(config.get("calibrations", {}))
    if "studies" not in config and calibrations:
        study = {
            "models": sorted(config["models"]),
            "calibrations": calibrations,
            "metrics": ["cosine"],
            "units": "layer",
        }
        config["studies"] = {"maps": study}
    return config


def measure_calibrations(
    config: Configuration, manifest: dict[str, Any], model: Any, root: Path
) -> Numbers:
    numbers: Numbers = {}
    for name, entry in config.calibrations.items():
        calibration = prepare_calibration(name, entry, manifest, root, config.parts(name))
        rows = sweep_units(model, calibration.samples, []).rows(["none"])
        accuracy = sum(row["correct"] for row in rows) / len(rows)
        loss = sum(row["nll"] for row in rows)
        numbers[name] = calibration.facts | {"accuracy": accuracy, "loss": loss}
    return numbers


def measure_benchmarks(
    config: Configuration, manifest: dict[str, Any], model: Any, root: Path
) -> Numbers:
    tokenizer = load_tokenizer(manifest)
    style = Style.of(manifest)
    numbers: Numbers = {}
    for name, options in config.benchmarks.tasks.items():
        task = lm_tasks.load_task(
            name, root, options.num_fewshot, options.choices, trust_code=options.trust_code
        )
        lm_tasks.test_documents(task, options.limit)
        benchmark = TaskBenchmark(task, model, tokenizer, options.limit, style)
        rows = benchmark.score(model, "base").metrics
        numbers[name] = rows[0] | {row["metric"]: row["value"] for row in rows}
    for name, entry in config.benchmarks.perplexity.items():
        texts = perplexity_texts(entry, root)
        perplexity_benchmark = PerplexityBenchmark(name, texts, tokenizer, entry)
        rows, _ = perplexity_benchmark.score(model, "base", Together(model, {}))
        numbers[name] = rows[0] | {row["metric"]: row["value"] for row in rows}
    return numbers


def count_meant(
    case: dict[str, Any], config: Configuration, manifest: dict[str, Any], model: Any
) -> dict[str, Numbers]:
    """The numbers of what a person reads in the files, by section and entry."""
    tokenizer = load_tokenizer(manifest)
    numbers: dict[str, Numbers] = {}
    for section, entries in case.get("meant", {}).items():
        numbers[section] = {}
        for name, documents in entries.items():
            if isinstance(documents[0], dict):
                numbers[section][name] = plain.count_questions(model, tokenizer, documents)
            else:
                entry = config.calibrations.get(name)
                length = entry.length if isinstance(entry, Text | Hub) else None
                numbers[section][name] = plain.count_texts(model, tokenizer, documents, length)
    return numbers


def assert_numbers(measured: dict[str, Numbers], expected: dict[str, Numbers]) -> None:
    """Compare the expected numbers with what lamina measured."""
    for section, entries in expected.items():
        for entry, numbers in entries.items():
            for key, value in numbers.items():
                measured_value = measured[section][entry][key]
                assert measured_value == pytest.approx(value, rel=1e-4), (section, entry, key)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = read_case(name)
    write_case(name, case, tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = case.get("expected", {})
    try:
        sections = case["config"]
        if isinstance(sections, str):
            sections = text.read_configuration(sections)
        config = load.load_configuration(complete_config(sections), tmp_path)
        for model_name, entry in config.models.items():
            manifest = describe_model(model_name, entry, tmp_path / entry.source)
            model = load_model(manifest)
            measured = {
                "calibrations": measure_calibrations(config, manifest, model, tmp_path),
                "benchmarks": measure_benchmarks(config, manifest, model, tmp_path),
            }
    except LaminaError as error:
        assert "refused" in expected, error
        with pytest.raises(LaminaError, match=expected["refused"]):
            raise
        return
    assert "refused" not in expected, f"it is not refused, and gives {measured}"
    assert_numbers(measured, expected)
    for section, entries in count_meant(case, config, manifest, model).items():
        for entry_name, counted in entries.items():
            measured_keys = measured[section][entry_name].keys()
            shared = {key: value for key, value in counted.items() if key in measured_keys}
            assert len(shared) >= 2, (section, entry_name, measured_keys)
            assert_numbers(measured, {section: {entry_name: shared}})


def test_right_inputs_have_numbers_and_are_never_refused() -> None:
    for name in CASES:
        case = read_case(name)
        is_valid = name.startswith("valid/")
        assert not (is_valid and "refused" in case.get("expected", {})), name
        assert case.get("meant") or case.get("expected"), name
