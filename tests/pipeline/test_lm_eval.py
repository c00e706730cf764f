"""lm-eval's files of a variant say, question by question, what the tables of the run say."""

import json
from pathlib import Path

import duckdb
import pytest

from tests import ROOT
from tests.pipeline.project import Project

VARIANT = "reference/recall/accuracy/removed=2/ghost/none"
BASE = "reference/none/none/removed=0/none/none"
TASK = "microworld_recall"
ROW = (
    "calibration = 'recall' AND selector = 'accuracy' AND removed = 2 AND repair = 'ghost' "
    "AND healing = 'none'"
)


def read_answers(project: Project, row: str) -> dict[int, float]:
    """Whether each question of the task is answered rightly, 0 or 1, by its index."""
    where = f"{row} AND task = '{TASK}' AND metric = 'acc'"
    return dict(project.query(f"SELECT sample, value FROM benchmark_samples WHERE {where}"))


@pytest.fixture(scope="module")
def folder(finished: Project) -> Path:
    finished.run(f"results/lm_eval/{VARIANT}", f"results/lm_eval/{BASE}")
    return finished.folder / "results/lm_eval" / VARIANT


def test_the_score_is_that_of_the_table(finished: Project, folder: Path) -> None:
    (file,) = folder.glob("results_*.json")
    scores = json.loads(file.read_text())["results"][TASK]

    [(value, stderr)] = finished.query(
        f"SELECT value, stderr FROM benchmarks WHERE {ROW} AND task = '{TASK}' AND metric = 'acc'"
    )
    assert scores["acc,none"] == value
    assert scores["acc_stderr,none"] == stderr


def test_every_answer_is_that_of_the_table(finished: Project, folder: Path) -> None:
    (file,) = folder.glob(f"samples_{TASK}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]

    assert {sample["doc_id"]: sample["acc"] for sample in samples} == read_answers(finished, ROW)
    assert all(len(sample["filtered_resps"]) > 1 for sample in samples)


def test_the_query_of_the_guide_finds_the_answers_that_changed(
    finished: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs/results.md").read_text()
    [query] = [block for block in guide.split("```sql\n")[1:] if "samples_support_" in block]
    sql = query.partition("```")[0].replace("samples_support_", f"samples_{TASK}_")
    sql = sql.replace("mine/support/best/removed=8/ghost_mixed/none", VARIANT)
    monkeypatch.chdir(finished.folder)

    changed = duckdb.sql(sql.replace("mine/none/none/removed=0/none/none", BASE)).fetchall()

    of_base = read_answers(finished, "removed = 0")
    of_variant = read_answers(finished, ROW)
    expected = [index for index in of_base if of_base[index] == 1 and of_variant[index] == 0]
    assert sorted(index for index, _ in changed) == sorted(expected)
