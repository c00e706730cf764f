"""What is measured follows what data files contain, whatever their times and caches say."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch

from lamina.data import lm_tasks
from lamina.errors import LaminaError
from lamina.store import checksum, parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.commands.explain import explain_file
from lamina_workflow.runtime import contents
from lamina_workflow.stages import prepare
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.prepare import PrepareCalibration
from tests import ROOT
from tests.given.configurations import minimal_config, write_model_and_data

TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
process_docs: !function words.docs
"""
TASK_CODE = """\
def add_word(doc):
    return {"query": doc["query"] + "WORD"}

def docs(documents):
    return documents.map(add_word)
"""
YEAR_2001 = 10**18  # nanoseconds


def rewrite(path: Path, text: str) -> None:
    """Another content with the same time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.jsonl").write_text("one")
    monkeypatch.chdir(tmp_path)
    return Path("mine.jsonl")


def hash_file(file: Path) -> str:
    return contents.hash_files([str(file)])[str(file)]


def test_another_content_of_the_same_size_and_time_has_another_hash(file: Path) -> None:
    first_hash = hash_file(file)
    rewrite(file, "two")
    second_hash = hash_file(file)
    rewrite(file, "six")
    assert len({first_hash, second_hash, hash_file(file)}) == 3


def test_a_missing_file_has_no_hash(file: Path) -> None:
    assert set(contents.hash_files([str(file), "missing"])) == {str(file)}


def test_a_job_refuses_a_file_that_changed_since_the_run_began(file: Path) -> None:
    hashes_before = contents.hash_files([str(file)])
    rewrite(file, "two")
    contents.check_contents(contents.hash_files([str(file)]))
    message = r"mine.jsonl changed after the run began.*Start again"
    with pytest.raises(LaminaError, match=message):
        contents.check_contents(hashes_before)


def test_jobs_follow_the_content_and_not_the_time_of_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_model_and_data(tmp_path)
    config = load_configuration(minimal_config(), root)
    monkeypatch.chdir(root)
    benchmark = prepare.benchmark_entry(config, "mine")
    files_by_name = {
        "mine.jsonl": prepare.calibration_files(config, "mine"),
        "mine_test.jsonl": prepare.data_files("mine", benchmark),
    }
    for name, files in files_by_name.items():
        assert files == [name]
        hashes_before = contents.hash_files(files)

        os.utime(name)
        assert contents.hash_files(files) == hashes_before
        rewrite(Path(name), Path(name).read_text() + "\n")
        assert contents.hash_files(files) != hashes_before


def test_every_rule_with_data_files_has_their_content_among_its_params() -> None:
    """But the checkpoint of a GGUF file, which is named by the content of its files."""
    n_rules = 0
    for rules_file in sorted((ROOT / "rules").glob("*.smk")):
        text = rules_file.read_text(encoding="utf-8")
        for rule in re.split(r"^rule ", text, flags=re.MULTILINE)[1:]:
            params = re.findall(r"^        (files|content)=(\w+(?:\(\w+\))?),$", rule, re.MULTILINE)
            value_by_name = dict(params)
            if "files" in value_by_name and not rule.startswith("dequantise_model"):
                assert value_by_name["content"] == f"content({value_by_name['files']})", rule
                n_rules += 1
    assert n_rules > 0


def forget_module(file: Path) -> None:
    """As in another process, which has not imported it."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", "") == str(file):
            del sys.modules[name]


def test_a_data_set_is_read_again_when_its_data_or_its_function_changed(tmp_path: Path) -> None:
    """`datasets` caches what it read, and what a task's function made of it, for other runs."""
    tasks = tmp_path / "workflow/tasks"
    tasks.mkdir(parents=True)
    (tasks / "mine.yaml").write_text(TASK)
    data = tmp_path / "data.jsonl"
    code = tasks / "words.py"
    for query, word in (("a", "x"), ("b", "x"), ("b", "y"), ("a", "y")):
        data.write_text(json.dumps({"query": query, "choices": ["c", "d"], "gold": 0}))
        code.write_text(TASK_CODE.replace("WORD", word))
        for path in (data, code):
            os.utime(path, ns=(YEAR_2001, YEAR_2001))
        forget_module(code)

        task = lm_tasks.load_task("mine", tmp_path, trust_code=True)

        queries = [document[0] for document in lm_tasks.test_documents(task)]
        assert queries == [query + word]


def test_a_file_says_which_job_wrote_it(tmp_path: Path) -> None:
    """Tables, JSON, tensors, and folders of adapters."""
    options = {"calibration": "mine", "entry": {"choices": "mine.jsonl"}}
    content = {"mine.jsonl": "5ea1"}
    wildcards = {"model": "m", "calibration": "mine"}
    snakemake = SimpleNamespace(
        input=SimpleNamespace(manifest="m.json", files=["mine.jsonl"]),
        output=SimpleNamespace(output="c.parquet"),
        params=Wildcards(options=options, code="c0de", content=content),  # type: ignore[arg-type]
        wildcards=wildcards,
    )
    job = PrepareCalibration.read(snakemake)

    parquet.write_table(tmp_path / "table", pa.table({"a": [1]}), job.provenance)
    parquet.write_json(tmp_path / "plan", {"a": 1}, job.description)
    tensors = {"a": torch.ones(2)}
    parquet.write_tensors(tmp_path / "patch", tensors, {"method": "ghost"}, job.description)
    parquet.write_table(tmp_path / "adapter/training.parquet", pa.table({}), job.provenance)

    expected = {
        "rule": "prepare_calibration",
        "wildcards": wildcards,
        "inputs": {"manifest": "m.json"},
        "options": options,
        "code": "c0de",
        "content": content,
    }
    for name in ("table", "plan", "patch", "adapter", "adapter/adapter_model.safetensors"):
        path = tmp_path / name
        assert json.loads("\n".join(explain_file(path))) == {"file": str(path), **expected}


def test_a_described_file_has_a_valid_seal_and_its_own_content(tmp_path: Path) -> None:
    parquet.write_table(tmp_path / "table", pa.table({"a": [1]}), {"job": "{}"})
    parquet.write_json(tmp_path / "plan", {"a": 1}, "{}")
    parquet.write_tensors(tmp_path / "patch", {"a": torch.ones(2)}, {"method": "ghost"}, "{}")
    for name in ("table", "plan", "patch"):
        checksum.check_file(tmp_path / name)
    assert checksum.read_json(tmp_path / "plan") == {"a": 1}


def test_a_file_that_no_job_wrote_says_nothing_of_its_origin(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no file of lamina")
    with pytest.raises(LaminaError, match="does not say which job wrote it"):
        checksum.read_origin(tmp_path / "text")
