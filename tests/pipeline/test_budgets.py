"""Plans made under a budget, and by metrics that remove nothing, in a real run."""

import pytest

from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The plans and scores of tests/configs/budgets.yaml."""
    project = copy_project(tmp_path_factory.mktemp("budgets"), "tests/configs/budgets.yaml")
    project.run("prune", "relevance", "results/tables/sweeps.parquet")
    return project


def plans(project: Project) -> dict[str, list[str]]:
    """Units by selector, in order of removal."""
    return dict(
        project.query("SELECT selector, list(unit ORDER BY position) FROM plans GROUP BY selector")
    )


def test_exact_makes_the_plan_of_the_full_sweep(planned: Project) -> None:
    found = plans(planned)
    assert found["exact"] == found["full"]
    assert all("0" not in found[name] for name in ("full", "exact", "race"))


def test_race_stays_within_its_tolerance(planned: Project) -> None:
    """Its first removal against the sweep in which every layer saw every sample."""
    first = plans(planned)["race"][0]
    rows = planned.query(
        "SELECT unit, avg(correct::int) FROM sweeps WHERE selector = 'base' AND removed = 0 AND correct IS NOT NULL "
        "AND unit NOT IN ('none', '0') GROUP BY unit"
    )
    accuracy = dict(rows)
    assert accuracy[first] >= max(accuracy.values()) - 0.02


def test_tables_say_how_many_samples_each_unit_saw(planned: Project) -> None:
    rows = planned.query(
        """SELECT r.selector, r.removed, r.unit, r.n_samples, count(s.sample) FROM relevance r
            JOIN sweeps s USING (model, calibration, selector, removed, unit)
            WHERE r.metric = 'accuracy' AND r.selector IN ('exact', 'race') GROUP BY ALL"""
    )
    assert all(stated == counted for *_, stated, counted in rows)
    for selector in ("exact", "race"):
        seen = [stated for name, _, _, stated, _ in rows if name == selector]
        assert min(seen) < 150
        assert sum(seen) < 150 * len(seen)


def test_what_exact_ruled_out_early_has_a_bound_instead_of_a_score(planned: Project) -> None:
    """Nowhere above what the full sweep says of the unpruned model."""
    rows = planned.query(
        """SELECT e.score, e.ci_low, e.at_least, e.n_samples, f.score FROM relevance e
            JOIN relevance f USING (model, calibration, metric, unit, removed)
            WHERE e.metric = 'accuracy' AND e.removed = 0 AND e.selector = 'exact' AND f.selector = 'base'"""
    )
    early = [row for row in rows if row[3] < 150]
    assert early and len(early) < len(rows)
    assert all(
        score is low is None and bound <= full + 1e-9 for score, low, bound, _, full in early
    )
    assert all(bound is None and score == full for score, _, bound, n, full in rows if n == 150)
    race = planned.query(
        "SELECT count(*) FROM relevance WHERE selector = 'race' AND at_least IS NOT NULL"
    )
    assert race == [(0,)]
