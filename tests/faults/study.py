"""The study that faults are injected into: tests/configs/faults.yaml with files of its own."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lamina.store import parquet
from tests.pipeline.project import Project, copy_project
from tests.slurm.tables import differences

CONFIG = "tests/configs/faults.yaml"
TABLES = [f"results/tables/{name}.parquet" for name in parquet.TABLES if name != "jobs"]
BENCHMARKS = [
    f"results/benchmarks/reference/{of}/block=0.parquet"
    for of in ("none/asked", "none/test", "own/test")
]
KEY = "reference/own/accuracy"

TASK = """
include: asked_form.txt
task: asked
dataset_kwargs: {data_files: {test: data/asked.jsonl}}
doc_to_text: !function asked_words.question
"""
FORM = """
dataset_path: json
output_type: multiple_choice
test_split: test
num_fewshot: 0
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: " "
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def made(folder: Path) -> Project:
    """The study before its first run."""
    folder.mkdir()
    project = copy_project(folder, CONFIG)
    reference = folder / "resources/reference"
    shutil.copytree(reference, folder / "model", ignore=shutil.ignore_patterns("data"))
    (folder / "data").mkdir()
    for name, split, count in (
        ("own", "train", 40),
        ("test", "test", 30),
        ("asked", "validation", 30),
    ):
        lines = (reference / f"data/facts_{split}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"data/{name}.jsonl").write_text("".join(lines[:count]))
    tasks = folder / "workflow/tasks"
    (tasks / "asked.yaml").write_text(TASK)
    (tasks / "asked_form.txt").write_text(FORM)
    (tasks / "asked_words.py").write_text('def question(doc):\n    return doc["query"]\n')
    return project


def copied(project: Project, folder: Path) -> Project:
    """A copy of a study with all that its run left, times included."""
    shutil.copytree(project.folder, folder, symlinks=True)
    return Project(folder, folder / project.config.relative_to(project.folder))


def equal(project: Project, undisturbed: Project) -> None:
    """Every row of every table is that of the undisturbed run, and no half file is left."""
    for table in TABLES:
        assert differences(project.folder / table, undisturbed.folder / table) == []
    assert not list((project.folder / "results").rglob("*.tmp"))


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.write_text('["another file"]\n')


def replace(path: Path, text: str, time_ns: int | None = None) -> None:
    """Another content at another time: that of the earlier one without any."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(time_ns or before, time_ns or before))


def until(reached: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
