"""A changed study is run again and ends with a report, also on a busy machine."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.pipeline.project import Project

pytestmark = pytest.mark.slow

# Each change begins at another stage, so it makes other tables anew while the rest goes on.
CHANGED_CONFIGS = {
    "text": {"benchmarks": {"perplexity": {"corpus_test": {"documents": "0:19"}}}},
    "timing": {"benchmarks": {"efficiency": {"repeats": 3}}},
    "study": {"studies": {"prune": {"removed": [1]}}},
}
ADDED_CODE = {
    "view": ("sql/views.sql", "CREATE OR REPLACE VIEW made_up AS SELECT * FROM models;\n"),
    "column": (
        "src/lamina/tables/benchmark.py",
        'EFFICIENCY.columns["made_up"] = Column("string", "Nothing.")\n',
    ),
    "metric": ("src/lamina/relevance/metrics/outputs.py", "\nEDITED = True\n"),
}
BUSY_PROCESS = """
import os
os.nice(5)  # so that jobs do not take twice as long
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Another busy process, so that jobs end in another order than usual.

    It ends with the tests if they are killed.
    """
    busy_process = subprocess.Popen([sys.executable, "-c", BUSY_PROCESS])
    yield
    busy_process.kill()
    busy_process.wait()


def run_again(project: Project) -> None:
    """Run to the end: a new report must be there and nothing left to do."""
    report = project.folder / "results/report.html"
    time_before = report.stat().st_mtime_ns
    # More jobs than cores, of one thread each: they must not wait for one another.
    project.run("--cores", "4", "--max-threads", "1")
    assert report.stat().st_mtime_ns > time_before
    assert (project.folder / "results/refusals.txt").is_file()
    assert project.stale() == []


# One change comes after the other, as a study grows: none is undone.


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("name", ADDED_CODE)
def test_a_study_with_changed_code_is_run_again(moved: Project, name: str) -> None:
    file, code = ADDED_CODE[name]
    moved.append(file, code)
    run_again(moved)


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("name", CHANGED_CONFIGS)
def test_a_study_with_a_changed_configuration_is_run_again(moved: Project, name: str) -> None:
    moved.configure(CHANGED_CONFIGS[name])
    run_again(moved)
