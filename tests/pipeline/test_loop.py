"""Plans made with the repair in the loop, in a real run."""

import pytest

from tests.pipeline.project import Project, copy_project, wildcard_values

pytestmark = pytest.mark.slow

SELECTORS = {"bare", "looped", "once", "wide", "beside"}
REMOVABLE_LAYERS = [str(layer) for layer in range(1, 11)]


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The plans, sweeps and patches of tests/configs/loop.yaml."""
    project = copy_project(tmp_path_factory.mktemp("loop"), "tests/configs/loop.yaml")
    tables = [f"results/tables/{table}.parquet" for table in ("plans", "sweeps", "patches")]
    project.run("prune", "repair", *tables)
    return project


def test_every_selector_with_a_repair_in_the_loop_makes_a_plan(looped: Project) -> None:
    plans = looped.query("SELECT selector, list(unit) FROM plans GROUP BY selector")
    assert {selector for selector, _ in plans} == SELECTORS
    for _, units in plans:
        assert len(units) == 2
        assert set(units) <= set(REMOVABLE_LAYERS)


def test_every_plan_with_a_repair_in_the_loop_gets_its_patch(looped: Project) -> None:
    patches = looped.query("SELECT DISTINCT selector FROM patches")
    assert {selector for (selector,) in patches} == SELECTORS


def mean_losses(looped: Project, selector: str) -> tuple[float, float]:
    """Mean nats a sample of the base model, and of its removals, in the sweep of a selector."""
    rows = looped.query(
        "SELECT unit = 'none', avg(nll), count(DISTINCT sample), count(DISTINCT unit) FROM sweeps "
        f"WHERE removed = 0 AND unit NOT IN ('0', '11') AND selector = '{selector}' GROUP BY ALL "
        "ORDER BY ALL"
    )
    (_, removal_loss, n_samples, n_units), (_, base_loss, n_base_samples, _) = rows
    assert n_samples == n_base_samples == 120
    assert n_units == len(REMOVABLE_LAYERS)
    return base_loss, removal_loss


def test_selectors_with_a_repair_in_the_loop_sweep_the_base_model_themselves(
    looped: Project,
) -> None:
    """The base model is the same under each of them; its repaired removals lose less."""
    base_loss, removal_loss = mean_losses(looped, "base")
    looped_base_loss, repaired_loss = mean_losses(looped, "looped")
    once_base_loss, once_repaired_loss = mean_losses(looped, "once")

    assert looped_base_loss == pytest.approx(base_loss, abs=1e-3)
    assert once_base_loss == pytest.approx(base_loss, abs=1e-3)
    assert once_repaired_loss == pytest.approx(repaired_loss, abs=1e-4)
    assert repaired_loss < removal_loss


def query_by_unit(project: Project, expression: str, sweep: str) -> dict[str, float]:
    """An aggregate of the rows of each unit in the file of a sweep."""
    file = project.folder / f"results/sweeps/reference/{sweep}.parquet"
    return dict(project.query(f"SELECT unit, {expression} FROM '{file}' GROUP BY unit"))


def loss_rises(project: Project, sweep: str) -> dict[str, float]:
    """By how much the loss rises with the removal of each unit."""
    losses = query_by_unit(project, "sum(nll) / sum(n_tokens)", sweep)
    base_loss = losses.pop("none")
    return {unit: loss - base_loss for unit, loss in losses.items()}


@pytest.mark.parametrize("n_removed", [0, 1])
def test_a_loss_is_minimised_over_the_task_and_a_text(looped: Project, n_removed: int) -> None:
    """Selector `wide` takes the unit with the smallest mean rise, from both sweeps of each step."""
    task_rises = loss_rises(looped, f"addition/wide/removed={n_removed}")
    text_rises = loss_rises(looped, f"corpus/for/addition/wide/removed={n_removed}")

    assert task_rises.keys() == text_rises.keys()
    assert len(task_rises) == len(REMOVABLE_LAYERS) - n_removed
    best_unit = min(task_rises, key=lambda unit: task_rises[unit] + text_rises[unit])
    ((removed_unit,),) = looped.query(
        f"SELECT unit FROM plans WHERE selector = 'wide' AND position = {n_removed + 1}"
    )
    assert removed_unit == best_unit


def test_a_cosine_is_minimised_over_the_task_and_a_text(looped: Project) -> None:
    """Selector `beside` takes the unit whose larger cosine of both is smallest."""
    task_cosines = query_by_unit(looped, "avg(cosine)", "addition/base/stream/layer/removed=0")
    text_cosines = query_by_unit(looped, "avg(cosine)", "corpus/base/stream/layer/removed=0")

    best_unit = min(REMOVABLE_LAYERS, key=lambda unit: max(task_cosines[unit], text_cosines[unit]))
    first_units = looped.query("SELECT unit FROM plans WHERE selector = 'beside' AND position = 1")
    assert first_units == [(best_unit,)]


def test_a_weight_that_is_left_open_is_chosen_and_reported(looped: Project) -> None:
    patches = looped.query(
        "SELECT general_loss, general_loss_before, general_kept, n_general FROM patches "
        "WHERE repair = 'kept'"
    )
    assert patches
    for loss, loss_before, is_kept, n_samples in patches:
        assert is_kept == (loss <= loss_before + 0.02)
        assert n_samples == 4
    n_weights = looped.query(
        "SELECT count(*) FROM patches WHERE repair = 'ghost' AND auto_weight IS NOT NULL"
    )
    assert n_weights == [(0,)]


def test_an_option_of_the_repair_reruns_the_sweeps_that_have_it_in_the_loop(
    looped: Project,
) -> None:
    config = looped.folder / "other.yaml"
    text = looped.config.read_text()
    config.write_text(text.replace("{method: ghost}", "{method: ghost, bias: true}"))
    stale_jobs = looped.stale(config)
    assert wildcard_values(stale_jobs, "sweep_units", "selector") == {"looped", "once"}
