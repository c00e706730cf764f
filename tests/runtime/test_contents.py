"""What is measured follows what data files hold, whatever their times say, and what packages keep of earlier ones."""

import json
import os
import re
import runpy
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
from lamina_workflow.runtime import contents
from lamina_workflow.stages import prepare
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.prepare import PrepareCalibration
from tests import ROOT
from tests.given.configurations import minimal_config, write_model_and_data

DOCS = "\ndef docs(found):\n    return found.map(add)\n"
TASK = (
    "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: data.jsonl}}\ntest_split: test\n"
    'output_type: multiple_choice\ndoc_to_text: "{{query}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: gold\n'
)


def rewrite(path: Path, text: str) -> None:
    """Another content with the same time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.jsonl").write_text("one")
    monkeypatch.chdir(tmp_path)
    contents._hash_file.cache_clear()
    return Path("mine.jsonl")


def test_another_content_has_another_hash_also_with_the_same_size_and_time(file: Path) -> None:
    found = set()
    for text in ("one", "two", "six"):
        rewrite(file, text)
        found.add(contents.hash_files([str(file)])[str(file)])
    assert len(found) == 3
    rewrite(file, "one")
    assert set(contents.hash_files([str(file), "missing"])) == {str(file)}


def test_a_job_refuses_a_file_that_changed_since_the_run_began(file: Path) -> None:
    expected = contents.hash_files([str(file)])
    rewrite(file, "two")
    contents.check_contents(contents.hash_files([str(file)]))
    with pytest.raises(
        LaminaError, match=r"mine.jsonl is not what it was when the run began.*Start again"
    ):
        contents.check_contents(expected)


def test_rules_follow_the_content_of_files_their_jobs_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions that a rule has as `files` and as `content`."""
    root = write_model_and_data(tmp_path)
    loaded = load_configuration(minimal_config(), root)
    monkeypatch.chdir(root)
    listed = {"mine.jsonl": prepare.calibration_files(loaded, "mine")}
    listed["mine_test.jsonl"] = prepare.data_files("mine", prepare.benchmark_entry(loaded, "mine"))
    for name, files in listed.items():
        before = contents.hash_files(files)
        os.utime(name)
        assert files == [name] and contents.hash_files(files) == before
        rewrite(Path(name), (root / name).read_text() + "\n")
        assert contents.hash_files(files).keys() == {name} and contents.hash_files(files) != before
    for file in sorted((ROOT / "rules").glob("*.smk")):
        for rule in re.split(r"^rule ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            asked = dict(
                re.findall(r"^        (files|content)=(\w+(?:\(\w+\))?),$", rule, re.MULTILINE)
            )
            # The checkpoint of a GGUF file is named by the content of its files.
            if "files" in asked and not rule.startswith("dequantise_model"):
                assert asked["content"] == f"content({asked['files']})", (
                    f"{file.name}: {rule.partition(':')[0]}"
                )


def test_a_data_set_is_known_by_its_content_and_not_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` keeps what it read, and what a task's function made of it, for other runs as well."""
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "workflow/tasks/mine.yaml").write_text(
        f"{TASK}process_docs: !function words.docs\n"
    )
    data, code = tmp_path / "data.jsonl", tmp_path / "workflow/tasks/words.py"
    for query, word in (("a", "x"), ("b", "x"), ("b", "y"), ("a", "y")):
        data.write_text(json.dumps({"query": query, "choices": ["c", "d"], "gold": 0}))
        code.write_text(f'def add(doc):\n    return {{"query": doc["query"] + "{word}"}}\n{DOCS}')
        for path in (data, code):
            os.utime(path, ns=(10**18, 10**18))
        for name in [
            name
            for name, found in sys.modules.items()
            if getattr(found, "__file__", "") == str(code)
        ]:
            del sys.modules[name]  # as in another process
        task = lm_tasks.load_task("mine", tmp_path, trust_code=True)
        assert [asked[0] for asked in lm_tasks.test_documents(task)] == [query + word]


def test_where_a_file_comes_from_stands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"calibration": "mine", "entry": {"choices": "mine.jsonl"}}
    params = Wildcards(options=options, code="c0de", content={"mine.jsonl": "5ea1"})  # type: ignore[arg-type]
    read, wildcards = (
        SimpleNamespace(manifest="m.json", files=["mine.jsonl"]),
        {"model": "m", "calibration": "mine"},
    )
    given = {
        "input": read,
        "output": SimpleNamespace(output="c.parquet"),
        "params": params,
        "wildcards": wildcards,
    }
    job = PrepareCalibration.read(SimpleNamespace(**given))
    told = {"rule": "prepare_calibration", "wildcards": wildcards, "inputs": {"manifest": "m.json"}}
    told |= {"options": options, "code": "c0de", "content": {"mine.jsonl": "5ea1"}}
    parquet.write_table(tmp_path / "table", pa.table({"a": [1]}), job.provenance)
    parquet.write_json(tmp_path / "plan", {"a": 1}, job.description)
    parquet.write_tensors(
        tmp_path / "patch", {"a": torch.ones(2)}, {"method": "ghost"}, job.description
    )
    parquet.write_table(tmp_path / "adapter/training.parquet", pa.table({}), job.provenance)
    for name in ("table", "plan", "patch", "adapter", "adapter/adapter_model.safetensors"):
        assert checksum.read_origin(tmp_path / name) == told
        monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path / name)])
        runpy.run_path(checksum.__file__, run_name="__main__")
        assert json.loads(capsys.readouterr().out) == {"file": str(tmp_path / name), **told}
    for name in ("table", "plan", "patch"):
        checksum.check_file(tmp_path / name)
    assert checksum.read_json(tmp_path / "plan") == {"a": 1}
    (tmp_path / "text").write_text("no file of lamina")
    with pytest.raises(LaminaError, match="does not say which job wrote it"):
        checksum.read_origin(tmp_path / "text")
