"""Plans found by searching whole sets, in a real run, to their benchmarks."""

import json

import pytest

from lamina_workflow.report import database
from tests.pipeline.project import Project, copy_project, rules_of

pytestmark = pytest.mark.slow

N_LAYERS = 12
SIZES = (1, 3)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run of tests/configs/search.yaml."""
    project = copy_project(tmp_path_factory.mktemp("search"), "tests/configs/search.yaml")
    project.run("all")
    return project


def test_every_plan_is_the_winner_of_its_search(searched: Project) -> None:
    plans = searched.query(
        "SELECT selector, removed, list(unit ORDER BY unit) FROM plans GROUP BY ALL ORDER BY ALL"
    )
    winners = searched.query(
        "SELECT selector, removed, list_sort(units) FROM searches "
        "WHERE stage = 'winner' AND removed > 0 ORDER BY ALL"
    )
    assert len(plans) == 6
    assert plans == winners
    for _, _, units in plans:
        assert not {"0", str(N_LAYERS - 1)} & set(units)  # which are protected


def test_a_plan_has_the_loss_of_its_search(searched: Project) -> None:
    """Except those of the portfolio: a winner with a repair has a score without one."""
    plans = searched.query(
        "SELECT selector, removed, any_value(score) FROM plans WHERE selector <> 'judged' "
        "GROUP BY ALL ORDER BY ALL"
    )
    winners = searched.query(
        "SELECT selector, removed, loss FROM searches "
        "WHERE stage = 'winner' AND removed > 0 AND selector <> 'judged' ORDER BY ALL"
    )
    assert plans
    assert plans == winners


def test_every_plan_is_benchmarked(searched: Project) -> None:
    variants = searched.query(
        "SELECT DISTINCT selector, removed, repair FROM benchmarks WHERE removed > 0"
    )
    assert len(variants) == 12


def test_a_finished_search_has_nothing_to_do_and_leaves_no_log(searched: Project) -> None:
    assert not searched.stale()
    assert not list(searched.folder.glob("results/searches/**/*.log"))


def test_a_search_reports_what_it_cost_and_what_it_ended_with(searched: Project) -> None:
    searches = searched.folder / "results/tables/searches.parquet"
    connection = database.connect_views([searches])

    results = connection.execute(
        "SELECT selector, strategy, removed, n_search, n_held_back, evaluations FROM search_results"
    ).fetchall()

    expected_searches = {("pairs", "none", 0), ("greedy", "none", 0), ("judged", "none", 0)}
    for size in SIZES:
        expected_searches.add(("pairs", "pairwise", size))
        expected_searches.add(("greedy", "rearrange", size))
        expected_searches.add(("judged", "portfolio", size))
    assert {result[:3] for result in results} == expected_searches
    n_sets_measured: dict[tuple[str, int], float] = {}
    for selector, _, size, n_search, n_held_out, n_evaluations in results:
        if selector != "judged":
            assert n_search == 60
            assert n_held_out == 20
            n_sets_measured[selector, size] = n_evaluations / 60
    # The base model, ten layers alone, and those that are left after two.
    assert n_sets_measured == {
        ("pairs", 0): 0,  # among what the search measured
        ("pairs", 1): 10,
        ("pairs", 3): 1,
        ("greedy", 0): 1,
        ("greedy", 1): 10,
        ("greedy", 3): 8,
    }


def test_another_size_is_searched_with_the_others_and_keeps_their_plans(searched: Project) -> None:
    plans = "results/plans/reference/addition/pairs"

    def read_plan(size: int) -> dict:
        return json.loads((searched.folder / plans / f"removed={size}.json").read_text())

    plan_before = read_plan(3)
    with searched.restored():
        searched.configure({"studies": {"prune": {"removed": [1, 2, 3]}}})
        stale_rules = rules_of(searched.stale())
        searched.run(f"{plans}/removed=2.json")

    assert {"search_plans", "pick_plan"} <= stale_rules
    before_searches = {"prepare_calibration", "capture_activations", "prune_step", "sweep_units"}
    assert not stale_rules & before_searches
    assert len(read_plan(2)["units"]) == 2
    assert read_plan(3) == plan_before
