"""One command takes the embedded model through all stages, and every table is there."""

import pytest

from lamina.store import parquet
from tests.pipeline.project import Project

VARIANT = "model, calibration, selector, removed, repair, healing"
GRAINS = {
    "models": "model",
    "layer_sizes": "model, layer",
    "handles": "handle",
    "gates": f"{VARIANT}, task",
    "calibrations": "model, calibration",
    "activations": "model, calibration, layer, span",
    "sweeps": "model, calibration, selector, removed, unit, sample",
    "relevance": "model, calibration, selector, removed, metric, unit",
    "plans": "model, calibration, selector, removed, unit",
    "patches": f"{VARIANT}, boundary",
    "training": f"{VARIANT}, step",
    "benchmarks": f"{VARIANT}, task, metric",
    "benchmark_samples": f"{VARIANT}, task, metric, sample",
    "agreements": "model, component, metric, statistic, calibrations",
    "dissociations": "model, calibration, rival, unit",
    "comparisons": "model, calibration, task, removed, repair, healing, selector, rival",
    "efficiency": VARIANT,
}


@pytest.mark.parametrize("name", parquet.TABLES)
def test_every_table_is_written_and_not_empty(measured: Project, name: str) -> None:
    """But for searches, which have a study of their own in test_search.py."""
    table = parquet.read_table(measured.folder / f"results/tables/{name}.parquet")
    assert table.schema.names == parquet.schema_of(name).names
    assert (table.num_rows > 0) == (name != "searches")


@pytest.mark.parametrize("name", GRAINS)
def test_every_table_has_one_row_per_grain(measured: Project, name: str) -> None:
    n_rows, n_grains = measured.query(
        f"SELECT count(*), count(DISTINCT ({GRAINS[name]})) FROM {name}"
    )[0]
    assert n_rows == n_grains


@pytest.mark.parametrize(
    "folder",
    ["sweeps", "relevance", "activations", "patches", "adapters", "benchmarks", "efficiency"],
)
def test_every_measured_file_names_its_code_and_settings(measured: Project, folder: str) -> None:
    files = sorted((measured.folder / "results" / folder).rglob("*.parquet"))
    assert files
    for file in files:
        metadata = parquet.pq.read_schema(file).metadata
        assert len(metadata[b"lamina.code"]) == 64, file
        assert len(metadata[b"lamina.params"]) == 64, file


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report.html", "report.zip"])
def test_the_report_of_snakemake_is_made(finished: Project, name: str) -> None:
    finished.run("--report", name)
    assert (finished.folder / name).stat().st_size > 100_000


def test_an_iterative_plan_grows_by_one_unit(measured: Project) -> None:
    plans = measured.query(
        "SELECT calibration, selector, removed, list(unit ORDER BY position) FROM plans "
        "GROUP BY ALL"
    )
    units_by_plan = {plan[:3]: plan[3] for plan in plans}
    for (calibration, selector, size), units in units_by_plan.items():
        assert len(set(units)) == size
        if size > 1:
            assert units[:-1] == units_by_plan[calibration, selector, size - 1]


def test_the_cosine_of_one_span_is_the_cosine_of_the_sweep(measured: Project) -> None:
    """Captured activations and the sweep's stream pass measure the same thing by different code."""
    cosines = measured.query(
        """
        SELECT activations.cosine, relevance.score
        FROM activations JOIN relevance USING (model, calibration, layer)
        WHERE span = 1 AND metric = 'cosine' AND removed = 0 AND selector = 'base'
        """
    )
    assert len(cosines) >= 24
    for captured_cosine, swept_cosine in cosines:
        assert captured_cosine == pytest.approx(swept_cosine, rel=1e-4)


def test_accuracy_after_a_removal_is_the_accuracy_before_the_next(measured: Project) -> None:
    steps = measured.query(
        """
        SELECT calibration, position, accuracy_before, accuracy_after
        FROM plans WHERE selector = 'accuracy' AND removed = 2 ORDER BY ALL
        """
    )
    first_steps = [step for step in steps if step[1] == 1]
    second_steps = [step for step in steps if step[1] == 2]
    assert first_steps
    for first_step, second_step in zip(first_steps, second_steps, strict=True):
        assert first_step[0] == second_step[0]
        assert first_step[3] == pytest.approx(second_step[2], abs=1e-9)


def test_a_table_names_its_schema_version(measured: Project) -> None:
    table = parquet.read_table(measured.folder / "results/tables/relevance.parquet")
    version = table.schema.metadata[b"lamina.schema_version"]
    assert version == parquet.SCHEMA_VERSION.encode()


def test_no_half_written_file_remains(measured: Project) -> None:
    assert not list((measured.folder / "results").rglob("*.tmp"))
