"""Plans found by searching whole sets, in a real run, to their benchmarks."""

import json

import pytest

from lamina_workflow.report import database
from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run of tests/configs/search.yaml."""
    project = copy_project(tmp_path_factory.mktemp("search"), "tests/configs/search.yaml")
    project.run("all")
    return project


def test_every_plan_is_what_its_search_ended_with_and_is_benchmarked(searched: Project) -> None:
    plans = searched.query(
        "SELECT selector, removed, list(unit ORDER BY unit), any_value(score) FROM plans GROUP BY ALL"
    )
    ends = searched.query(
        "SELECT selector, removed, list_sort(units), loss FROM searches WHERE stage = 'winner' AND removed > 0"
    )
    # A plan scores as a bare set, and the portfolio may have found its winner better repaired.
    assert sorted(plan[:3] for plan in plans) == sorted(end[:3] for end in ends) and len(plans) == 6
    assert sorted(plan for plan in plans if plan[0] != "judged") == sorted(
        end for end in ends if end[0] != "judged"
    )
    assert all(not {"0", "11"} & set(units) for _, _, units, _ in plans)
    measured = searched.query(
        "SELECT DISTINCT selector, removed, repair FROM benchmarks WHERE removed > 0"
    )
    assert len(measured) == 12
    assert not searched.stale()
    assert not list(searched.folder.glob("results/searches/**/*.log"))


def test_a_search_tells_what_it_cost_and_what_it_ends_with(searched: Project) -> None:
    tables = database.connect_views(
        searched.folder / "sql/views.sql", [searched.folder / "results/tables/searches.parquet"]
    )
    names = "selector, strategy, removed, n_search, n_held_back, evaluations"
    found = {
        row[:3]: row[3:] for row in tables.execute(f"SELECT {names} FROM search_results").fetchall()
    }
    assert set(found) == {
        *((name, "none", 0) for name in ("bare", "evolved", "judged")),
        *(("judged", "portfolio", size) for size in (1, 3)),
        *((name, "evolutionary", size) for name in ("bare", "evolved") for size in (1, 3)),
    }
    assert {row[:2] for name, row in found.items() if name[0] != "judged"} == {(60, 20)}
    # Twelve children of three generations at most, on at most all samples.
    assert all(60 <= row[2] <= 60 * 12 for name, row in found.items() if name[0] != "judged")


def test_another_size_is_searched_with_the_others_and_leaves_their_plans(searched: Project) -> None:
    with searched.restored():
        searched.configure({"studies": {"prune": {"removed": [1, 2, 3]}}})
        rules = {job.rule for job in searched.stale()}
        assert {"search_plans", "pick_plan"} <= rules
        assert not rules & {
            "prepare_calibration",
            "capture_activations",
            "prune_step",
            "sweep_units",
        }
        folder = searched.folder / "results/plans/reference/addition/bare"
        before = json.loads((folder / "removed=3.json").read_text())
        searched.run(str(folder.relative_to(searched.folder) / "removed=2.json"))
        assert json.loads((folder / "removed=3.json").read_text()) == before
        assert len(json.loads((folder / "removed=2.json").read_text())["units"]) == 2
