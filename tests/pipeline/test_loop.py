"""Plans made with the repair in the loop, in a real run."""

import pytest

from tests.pipeline.project import Project, copy_project


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The plans, sweeps and patches of tests/configs/loop.yaml."""
    project = copy_project(tmp_path_factory.mktemp("loop"), "tests/configs/loop.yaml")
    project.run("prune", "recover", *(f"results/tables/{table}.parquet" for table in ("plans", "sweeps", "patches")))
    return project


def test_every_selector_with_the_repair_in_the_loop_makes_a_plan_and_gets_its_patch(looped: Project) -> None:
    plans = dict(looped.query("SELECT selector, list(unit ORDER BY position) FROM plans GROUP BY selector"))
    assert {name: len(units) for name, units in plans.items()} == dict.fromkeys(("bare", "looped", "race", "once"), 2)
    assert all("0" not in units and "11" not in units for units in plans.values())
    patched = looped.query("SELECT DISTINCT selector FROM patches")
    assert {name for (name,) in patched} == set(plans)


def test_sweeps_of_the_unpruned_model_are_the_selectors_own(looped: Project) -> None:
    """The base is the same model under each, and what is measured of it too; its repaired removals lose less."""
    rows = looped.query(
        "SELECT selector, unit = 'none', avg(nll), count(DISTINCT sample), count(DISTINCT unit) FROM sweeps "
        "WHERE removed = 0 AND unit NOT IN ('0', '11') AND selector <> 'race' GROUP BY ALL"
    )
    found = {(selector, base): (loss, samples, units) for selector, base, loss, samples, units in rows}
    assert {selector for selector, _ in found} == {"base", "looped", "once"}
    losses = [found[selector, True][0] for selector in ("base", "looped", "once")]
    assert max(losses) - min(losses) < 1e-3
    assert found["looped", False][0] == pytest.approx(found["once", False][0], abs=1e-4)
    assert found["looped", False][0] < found["base", False][0]
    assert all(samples == 120 for _, samples, _ in found.values())
    assert all(found[selector, False][2] == 10 for selector in ("base", "looped", "once"))


def test_an_option_of_the_recovery_reruns_the_sweeps_that_have_it_in_the_loop(looped: Project) -> None:
    config = looped.folder / "other.yaml"
    config.write_text(looped.config.read_text().replace("{method: ghost}", "{method: ghost, bias: true}"))
    stale = {job.wildcards["selector"] for job in looped.stale(config) if job.rule == "sweep_units"}
    assert stale == {"looped", "once"}
