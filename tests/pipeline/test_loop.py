"""Plans made with the repair in the loop, in a real run."""

import pytest

from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The plans, sweeps and patches of tests/configs/loop.yaml."""
    project = copy_project(tmp_path_factory.mktemp("loop"), "tests/configs/loop.yaml")
    project.run(
        "prune",
        "repair",
        *(f"results/tables/{table}.parquet" for table in ("plans", "sweeps", "patches")),
    )
    return project


def test_every_selector_with_the_repair_in_the_loop_makes_a_plan_and_gets_its_patch(
    looped: Project,
) -> None:
    plans = dict(
        looped.query("SELECT selector, list(unit ORDER BY position) FROM plans GROUP BY selector")
    )
    assert {name: len(units) for name, units in plans.items()} == dict.fromkeys(
        ("bare", "looped", "once", "wide", "beside"), 2
    )
    assert all("0" not in units and "11" not in units for units in plans.values())
    patched = looped.query("SELECT DISTINCT selector FROM patches")
    assert {name for (name,) in patched} == set(plans)


def test_sweeps_of_the_unpruned_model_are_the_selectors_own(looped: Project) -> None:
    """The base is the same model under each, and what is measured of it too; its repaired removals lose less."""
    rows = looped.query(
        "SELECT selector, unit = 'none', avg(nll), count(DISTINCT sample), count(DISTINCT unit) FROM sweeps "
        "WHERE removed = 0 AND unit NOT IN ('0', '11') AND selector IN ('base', 'looped', 'once') "
        "GROUP BY ALL"
    )
    found = {
        (selector, base): (loss, samples, units) for selector, base, loss, samples, units in rows
    }
    assert {selector for selector, _ in found} == {"base", "looped", "once"}
    losses = [found[selector, True][0] for selector in ("base", "looped", "once")]
    assert max(losses) - min(losses) < 1e-3
    assert found["looped", False][0] == pytest.approx(found["once", False][0], abs=1e-4)
    assert found["looped", False][0] < found["base", False][0]
    assert all(samples == 120 for _, samples, _ in found.values())
    assert all(found[selector, False][2] == 10 for selector in ("base", "looped", "once"))


def test_a_selector_reads_general_text_beside_its_own_under_its_own_plans(looped: Project) -> None:
    """The least mean of both rises of the loss, from the two sweeps of each step; `cosine` by the larger of both."""
    picked = dict(looped.query("SELECT position, unit FROM plans WHERE selector = 'wide'"))
    for removed in (0, 1):
        rise: dict[str, list[float]] = {}
        for place in ("addition/wide", "corpus/for/addition/wide"):
            file = looped.folder / f"results/sweeps/reference/{place}/removed={removed}.parquet"
            losses = dict(
                looped.query(f"SELECT unit, sum(nll) / sum(n_tokens) FROM '{file}' GROUP BY unit")
            )
            for unit in losses.keys() - {"none"}:
                rise.setdefault(unit, []).append(losses[unit] - losses["none"])
        assert len(rise) == 10 - removed and all(len(both) == 2 for both in rise.values())
        assert picked[removed + 1] == min(rise, key=lambda unit: sum(rise[unit]))
    base = [
        looped.folder / f"results/sweeps/reference/{name}/base/stream/layer/removed=0.parquet"
        for name in ("addition", "corpus")
    ]
    both = [
        dict(looped.query(f"SELECT unit, avg(cosine) FROM '{file}' GROUP BY unit")) for file in base
    ]
    units = set(map(str, range(1, 11)))
    least = min(units, key=lambda unit: max(found[unit] for found in both))
    assert looped.query("SELECT unit FROM plans WHERE selector = 'beside' AND position = 1") == [
        (least,)
    ]


def test_a_weight_that_is_left_open_is_chosen_and_told(looped: Project) -> None:
    rows = looped.query(
        "SELECT auto_weight, general_loss, general_loss_before, general_kept, n_general FROM patches "
        "WHERE repair = 'kept'"
    )
    assert rows and all(row[3] == (row[1] <= row[2] + 0.02) and row[4] == 4 for row in rows)
    assert looped.query(
        "SELECT count(*) FROM patches WHERE repair = 'ghost' AND auto_weight IS NOT NULL"
    ) == [(0,)]


def test_an_option_of_the_repair_reruns_the_sweeps_that_have_it_in_the_loop(
    looped: Project,
) -> None:
    config = looped.folder / "other.yaml"
    config.write_text(
        looped.config.read_text().replace("{method: ghost}", "{method: ghost, bias: true}")
    )
    stale = {job.wildcards["selector"] for job in looped.stale(config) if job.rule == "sweep_units"}
    assert stale == {"looped", "once"}
