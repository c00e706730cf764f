"""Plans of size 0 and below from the configuration to the report and the export, in a real run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch
from transformers import AutoModelForCausalLM

from lamina.variant import Variant
from tests.given.edited_models import hold_path
from tests.given.variants import compute_logits
from tests.pipeline.project import Project, copy_project, parse_jobs

pytestmark = pytest.mark.slow

N_LAYERS = 12
TOKEN_IDS = torch.arange(3, 23).reshape(2, 10)
LARGER = "reference/addition/twice/removed=-1/none/none"
TRADED = "reference/addition/twice/removed=0/none/none"
VARIANTS = {
    ("deepest", 1, "ghost"),
    ("deepest", 1, "none"),
    ("otherwise", 0, "none"),
    ("otherwise", 1, "none"),
    ("twice", -1, "ghost"),
    ("twice", -1, "none"),
    ("twice", 0, "ghost"),
    ("twice", 0, "none"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = copy_project(tmp_path_factory.mktemp("moves"), "tests/configs/moves.yaml")
    project.run("all")
    project.run(f"results/exports/{LARGER}", f"results/exports/{TRADED}")  # with their benchmarks
    return project


def read_plan(project: Project, selector: str, size: int) -> dict[str, Any]:
    file = project.folder / f"results/plans/reference/addition/{selector}/removed={size}.json"
    plan: dict[str, Any] = json.loads(file.read_text())
    return plan


def test_every_size_has_a_plan_that_adds_up_to_it(finished: Project) -> None:
    assert read_plan(finished, "twice", -1)["units"] == ["4x2"]
    assert read_plan(finished, "twice", 0)["units"] == ["9", "4x2"]
    rearranged = read_plan(finished, "otherwise", 0)["units"]
    assert rearranged
    n_removed = sum(unit.isdigit() for unit in rearranged)
    assert n_removed == sum(unit.endswith("x2") for unit in rearranged)


def test_the_base_model_and_plans_of_size_0_have_scores_of_their_own(finished: Project) -> None:
    rows = finished.query(
        "SELECT selector, removed, repair, value FROM benchmarks WHERE task = 'corpus_test' AND "
        "metric = 'perplexity'"
    )
    value_by_variant = {row[:3]: row[3] for row in rows}

    assert value_by_variant.keys() == VARIANTS | {("none", 0, "none")}
    assert len(rows) == len(VARIANTS) + 1
    base = value_by_variant["none", 0, "none"]
    bare = [("twice", -1, "none"), ("twice", 0, "none"), ("otherwise", 0, "none")]
    assert len({base, *(value_by_variant[key] for key in bare)}) == 4
    # Nothing was removed at size -1, so that there is nothing to repair.
    repaired = value_by_variant["twice", -1, "ghost"]
    assert repaired == pytest.approx(value_by_variant["twice", -1, "none"])
    assert value_by_variant["twice", 0, "ghost"] != value_by_variant["twice", 0, "none"]


def test_the_database_compares_them_with_the_base_model(finished: Project) -> None:
    database = finished.folder / "results/lamina.duckdb"
    with duckdb.connect(str(database), read_only=True) as connection:
        compared = connection.execute(
            "SELECT selector, removed, repair, kept, paired FROM scores WHERE task = 'corpus_test'"
        ).fetchall()
        answered = connection.execute("SELECT DISTINCT removed FROM answers").fetchall()
        searched = connection.execute(
            "SELECT strategy, removed, loss_base FROM search_results ORDER BY strategy, removed"
        ).fetchall()
    kept_by_variant = {row[:3]: row[3] for row in compared}
    assert kept_by_variant.keys() == VARIANTS | {("none", 0, "none")}
    assert kept_by_variant["none", 0, "none"] == 1
    assert kept_by_variant["twice", 0, "none"] != 1
    assert all(paired for *key, _, paired in compared if key[0] != "none")
    assert answered == [(1,)]
    assert [row[:2] for row in searched] == [("none", 0), ("rearrange", 0), ("rearrange", 1)]
    assert len({loss_base for *_, loss_base in searched}) == 1


def test_the_report_and_the_ending_show_all_sizes(finished: Project) -> None:
    page = (finished.folder / "results/report.html").read_text()
    assert page.count('<td class="name">base model</td>') >= 1
    for handle in ("A-1", "A0", "A0a", "B0"):
        assert f"<td>{handle}</td>" in page

    command = [sys.executable, "-m", "lamina_workflow.report.ending", "tests/configs/moves.yaml"]
    ending = subprocess.run(command, cwd=finished.folder, capture_output=True, text=True)
    assert ending.returncode == 0, ending.stderr
    lines = [line.strip() for line in ending.stdout.splitlines()]
    assert sum(line.startswith("base model ") for line in lines) == 1
    assert sum(line.startswith("A-1 ") for line in lines) == 1
    [load_line] = [line for line in lines if line.startswith("load it")]
    assert "/removed=1/" in load_line


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        (LARGER, [*range(5), *range(4, 12)], "with 1 layer more"),
        (TRADED, [*range(5), *range(4, 9), 10, 11], "with as many layers"),
    ],
)
def test_an_export_loads_in_transformers_with_equal_logits(
    finished: Project, name: str, path: list[int], words: str
) -> None:
    folder = finished.folder / "results/exports" / name
    base = AutoModelForCausalLM.from_pretrained(finished.folder / "resources/reference")

    loaded = AutoModelForCausalLM.from_pretrained(folder)

    assert loaded.config.num_hidden_layers == N_LAYERS - Variant.parse(name).removed
    held = hold_path(base, path)
    torch.testing.assert_close(compute_logits(loaded, TOKEN_IDS), compute_logits(held, TOKEN_IDS))
    card = (Path(folder) / "README.md").read_text()
    assert words in card
    assert "None were measured" not in card


def test_a_finished_run_has_nothing_to_do(finished: Project) -> None:
    assert parse_jobs(finished.run("-n", "all").stdout) == []
