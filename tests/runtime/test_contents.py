"""What is measured follows what data files hold, whatever their times say, and what packages keep of earlier ones."""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from lamina.data import lm_tasks, task_files
from lamina.errors import LaminaError, explained
from lamina.runtime import contents, explain
from lamina.stages import prepare
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.load import load
from tests.given.configurations import minimal, put, workplace

DOCS = "\ndef docs(found):\n    return found.map(add)\n"


def rewrite(path: Path, text: str) -> None:
    """Another content with the same time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.jsonl").write_text("one")
    monkeypatch.chdir(tmp_path)
    contents._digest.cache_clear()
    return Path("mine.jsonl")


def test_another_content_has_another_hash_also_with_the_same_size_and_time(file: Path) -> None:
    found = set()
    for text in ("one", "two", "six"):
        rewrite(file, text)
        found.add(contents.digests([str(file)])[str(file)])
    assert len(found) == 3
    rewrite(file, "one")
    assert set(contents.digests([str(file), "missing"])) == {str(file)}


def test_a_job_refuses_a_file_that_changed_since_the_run_began(file: Path) -> None:
    told = contents.digests([str(file)])
    rewrite(file, "two")
    with pytest.raises(LaminaError, match=r"mine.jsonl is not what it was when the run began.*Start again"):
        contents.check(told)


@pytest.mark.parametrize("then", ["two", "one"])
def test_a_job_refuses_a_file_that_changes_while_it_is_read_even_if_it_is_put_back(then: str, file: Path) -> None:
    told = contents.digests([str(file)])
    with pytest.raises(SystemExit, match=r"mine.jsonl was changed while it was being read.*Start again"), explained():
        contents.check(told)
        for text in ("two", then):
            rewrite(file, text)


def test_a_job_that_reads_a_data_file_is_told_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, root = minimal(), workplace(tmp_path)
    labelled = [json.dumps({"text": f"a {label}", "label": label}) for label in "uv"]
    put(config, "diagnoses", {"labels": {"kind": "probe", "file": "labels.jsonl", "folds": 2}})
    (root / "labels.jsonl").write_text("\n".join(4 * labelled))
    monkeypatch.chdir(root)
    loaded = load(config, root)
    read = {
        "mine.jsonl": prepare.calibration_files(loaded, "mine"),
        "mine_test.jsonl": prepare.data_files("mine", prepare.benchmark(loaded, "mine")),
        "labels.jsonl": [loaded.diagnoses["labels"].file],
    }
    for name, files in read.items():
        before = contents.digests(files)
        os.utime(name)
        assert contents.digests(files) == before
        rewrite(Path(name), (root / name).read_text() + "\n")
        after = contents.digests(files)
        assert after.keys() == {name} and after != before


def test_a_data_set_is_known_by_its_content_and_not_by_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` keeps what it read, and what a task's function made of it, for other runs as well."""
    monkeypatch.setattr(task_files, "FOLDER", "workflow/tasks")
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "workflow/tasks/mine.yaml").write_text(
        "{task: mine, dataset_path: json, dataset_kwargs: {data_files: {test: data.jsonl}}, test_split: test, "
        'output_type: multiple_choice, doc_to_text: "{{query}}", doc_to_choice: "{{choices}}", doc_to_target: gold, '
        "process_docs: !function words.docs}"
    )
    data, code = tmp_path / "data.jsonl", tmp_path / "workflow/tasks/words.py"
    for query, word in (("a", "x"), ("b", "x"), ("b", "y"), ("a", "y")):
        data.write_text(json.dumps({"query": query, "choices": ["c", "d"], "gold": 0}))
        code.write_text(f'def add(doc):\n    return {{"query": doc["query"] + "{word}"}}\n{DOCS}')
        for path in (data, code):
            os.utime(path, ns=(10**18, 10**18))
        for name in [name for name, found in sys.modules.items() if getattr(found, "__file__", "") == str(code)]:
            del sys.modules[name]  # as in another process
        task = lm_tasks.load_task("mine", tmp_path, trust_code=True)
        assert [asked[0] for asked in lm_tasks.test_documents(task)] == [query + word]


def test_what_a_job_was_told_stands_in_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_now", {})
    seal.tell('{"job": 1}\n')  # with the line end of a shell's here-string
    store.write(tmp_path / "table", pa.table({"a": [1]}))
    store.write_json(tmp_path / "plan", {"a": 1})
    store.write_tensors(tmp_path / "patch", {"a": torch.ones(2)}, {"method": "ghost"})
    for name in ("table", "plan", "patch"):
        seal.check(tmp_path / name)
        assert explain.job(tmp_path / name) == {"job": 1}
    assert seal.read_json(tmp_path / "plan") == {"a": 1}
    (tmp_path / "text").write_text("no file of lamina")
    with pytest.raises(LaminaError, match="does not say which job wrote it"):
        explain.job(tmp_path / "text")
