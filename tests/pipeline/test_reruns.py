"""A changed study is run again and ends with a report, also on a machine that is busy with other things."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.pipeline.project import Project

pytestmark = pytest.mark.slow

VIEW = "CREATE OR REPLACE VIEW made_up AS SELECT * FROM models;\n"
COLUMN = 'EFFICIENCY.columns["made_up"] = Column("string", "Nothing.")\n'
# Each begins at another stage, and so takes other tables away while the rest of the graph runs.
CONFIGURED = {
    "text": {"benchmarks": {"perplexity": {"corpus_test": {"documents": "0:19"}}}},
    "timing": {"benchmarks": {"efficiency": {"repeats": 3}}},
    "study": {"studies": {"prune": {"removed": [1]}}},
}
EDITED = {
    "view": ("sql/views.sql", VIEW),
    "column": ("src/lamina/tables/benchmark.py", COLUMN),
    "metric": ("src/lamina/relevance/metrics/outputs.py", "\nEDITED = True\n"),
}


@pytest.fixture
def load() -> Iterator[None]:
    """A busy process beside a run of more jobs than there are cores: jobs come to an end in other orders than usual.

    It yields to them, so that they do not take twice as long, and ends with the tests.
    """
    code = "import os; os.nice(5); parent = os.getppid()\nwhile os.getppid() == parent: pass"
    busy = subprocess.Popen([sys.executable, "-c", code])
    yield
    busy.kill()
    busy.wait()


def reported(project: Project) -> None:
    """Run to the end; a new report must be there and nothing left to do."""
    report = project.folder / "results/report.html"
    before = report.stat().st_mtime_ns
    # One thread each: more threads than cores would wait for one another, and not for the order that is meant.
    project.run("--cores", "4", "--max-threads", "1")
    assert report.stat().st_mtime_ns > before
    assert (project.folder / "results/refusals.txt").is_file()
    assert project.stale() == []


# One change comes after the other, as a study grows: none is taken back.


@pytest.mark.parametrize("change", EDITED)
def test_edited_code(moved: Project, load: None, change: str) -> None:
    moved.add(*EDITED[change])
    reported(moved)


@pytest.mark.parametrize("change", CONFIGURED)
def test_changed_configurations(moved: Project, load: None, change: str) -> None:
    moved.configure(CONFIGURED[change])
    reported(moved)
