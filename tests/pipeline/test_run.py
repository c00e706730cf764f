"""One command takes the embedded model through all stages, and every product is there."""

import pytest

from lamina.store import parquet
from tests.pipeline.project import Project


@pytest.mark.parametrize("name", parquet.TABLES)
def test_every_table_is_written_and_not_empty(finished: Project, name: str) -> None:
    """Searches have a study of their own, in test_search.py."""
    data = parquet.read_table(finished.folder / f"results/tables/{name}.parquet")
    assert (data.num_rows > 0) == (name != "searches")
    assert data.schema.names == parquet.schema_of(name).names


GRAINS = {
    "models": "model",
    "calibrations": "model, calibration",
    "activations": "model, calibration, layer, span",
    "sweeps": "model, calibration, selector, removed, unit, sample",
    "relevance": "model, calibration, selector, removed, metric, unit",
    "plans": "model, calibration, selector, removed, unit",
    "patches": "model, calibration, selector, removed, repair, healing, boundary",
    "training": "model, calibration, selector, removed, repair, healing, step",
    "benchmarks": "model, calibration, selector, removed, repair, healing, task, metric",
    "benchmark_samples": "model, calibration, selector, removed, repair, healing, task, metric, sample",
    "agreements": "model, component, metric, statistic, calibrations",
    "dissociations": "model, calibration, rival, unit",
    "comparisons": "model, calibration, task, removed, repair, healing, selector, rival",
    "efficiency": "model, calibration, selector, removed, repair, healing",
}


@pytest.mark.parametrize("name", GRAINS)
def test_every_table_has_one_row_per_grain(finished: Project, name: str) -> None:
    total, distinct = finished.query(
        f"SELECT count(*), count(DISTINCT ({GRAINS[name]})) FROM {name}"
    )[0]
    assert total == distinct


@pytest.mark.parametrize(
    "folder",
    ["sweeps", "relevance", "activations", "patches", "adapters", "benchmarks", "efficiency"],
)
def test_every_measured_file_names_its_code_and_settings(finished: Project, folder: str) -> None:
    files = sorted((finished.folder / "results" / folder).rglob("*.parquet"))
    assert files
    for file in files:
        metadata = parquet.pq.read_schema(file).metadata
        assert len(metadata[b"lamina.code"]) == len(metadata[b"lamina.params"]) == 64, file


@pytest.mark.parametrize(
    "name", ["report.html", pytest.param("report.zip", marks=pytest.mark.slow)]
)
def test_the_report_of_snakemake_is_made(finished: Project, name: str) -> None:
    finished.run("--report", name)
    assert (finished.folder / name).stat().st_size > 100_000


def test_an_iterative_plan_grows_by_one_unit(finished: Project) -> None:
    rows = finished.query(
        "SELECT calibration, selector, removed, list(unit ORDER BY position) FROM plans GROUP BY ALL"
    )
    plans = {row[:3]: row[3] for row in rows}
    for (calibration, selector, removed), units in plans.items():
        assert len(set(units)) == removed
        if removed > 1:
            assert units[: removed - 1] == plans[calibration, selector, removed - 1]


def test_the_cosine_of_one_span_is_the_cosine_of_the_sweep(finished: Project) -> None:
    """Captured activations and the sweep's stream pass measure the same thing by different code."""
    rows = finished.query(
        """SELECT a.cosine, r.score FROM activations a JOIN relevance r
            ON a.model = r.model AND a.calibration = r.calibration AND a.layer = r.layer
            WHERE a.span = 1 AND r.metric = 'cosine' AND r.removed = 0 AND r.selector = 'base'"""
    )
    assert len(rows) >= 24
    for captured, swept in rows:
        assert captured == pytest.approx(swept, rel=1e-4)


def test_accuracy_after_a_removal_is_the_accuracy_before_the_next(finished: Project) -> None:
    rows = finished.query(
        """SELECT accuracy_after, lead(accuracy_before) OVER (PARTITION BY calibration ORDER BY position)
            FROM plans WHERE selector = 'accuracy' AND removed = 2"""
    )
    compared = [(after, following) for after, following in rows if following is not None]
    assert compared
    for after, following in compared:
        assert after == pytest.approx(following, abs=1e-9)


def test_files_carry_their_schema_version_and_no_half_files_remain(finished: Project) -> None:
    metadata = parquet.read_table(
        finished.folder / "results/tables/relevance.parquet"
    ).schema.metadata
    assert metadata[b"lamina.schema_version"] == parquet.SCHEMA_VERSION.encode()
    assert not list((finished.folder / "results").rglob("*.tmp"))
