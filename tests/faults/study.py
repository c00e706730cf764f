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
KEY = "reference/own/accuracy"
# Files of questions: the split that they are taken from, and their number.
QUESTIONS = {"own": ("train", 40), "test": ("test", 30), "asked": ("validation", 30)}

TASK = """
include: asked_form.txt
task: asked
dataset_kwargs: {data_files: {test: data/asked.jsonl}}
doc_to_text: !function asked_words.question
"""
TASK_FORM = """
dataset_path: json
output_type: multiple_choice
test_split: test
num_fewshot: 0
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: " "
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TASK_FUNCTION = """
def question(doc):
    return doc["query"]
"""


def write_study(folder: Path) -> Project:
    """The study before its first run."""
    folder.mkdir()
    project = copy_project(folder, CONFIG)
    reference = folder / "resources/reference"
    shutil.copytree(reference, folder / "model", ignore=shutil.ignore_patterns("data"))
    (folder / "data").mkdir()
    for name, (split, n_questions) in QUESTIONS.items():
        lines = (reference / f"data/facts_{split}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"data/{name}.jsonl").write_text("".join(lines[:n_questions]))
    tasks = folder / "workflow/tasks"
    (tasks / "asked.yaml").write_text(TASK)
    (tasks / "asked_form.txt").write_text(TASK_FORM)
    (tasks / "asked_words.py").write_text(TASK_FUNCTION)
    return project


def copy_study(project: Project, folder: Path) -> Project:
    """A copy of a study with all that its run left, times included."""
    shutil.copytree(project.folder, folder, symlinks=True)
    return Project(folder, folder / project.config.relative_to(project.folder))


def assert_equal_tables(project: Project, undisturbed: Project) -> None:
    """Every row of every table is that of the undisturbed run, and no half-written file is left."""
    for table in TABLES:
        assert differences(project.folder / table, undisturbed.folder / table) == []
    assert not list((project.folder / "results").rglob("*.tmp"))


def flip_bit(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def clear(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_json(path: Path) -> None:
    path.write_text('["another file"]\n')


def rewrite(path: Path, text: str, time_ns: int | None = None) -> None:
    """Another content, with a time of its own or that of the earlier content."""
    if time_ns is None:
        time_ns = path.stat().st_mtime_ns
    path.write_text(text)
    set_time(path, time_ns)


def set_time(path: Path, time_ns: int) -> None:
    os.utime(path, ns=(time_ns, time_ns))


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
