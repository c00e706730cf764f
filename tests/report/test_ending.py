"""The last lines of a run name the best variant, the report and the database."""

from pathlib import Path

import numpy as np

from lamina.store import parquet
from lamina_workflow.report import ending
from tests.given.planted_tables import connect_planted_tables, variant_key
from tests.given.plausible_tables import VIEWS, write_study, write_tables


def test_the_best_variant_is_a_largest_one_that_keeps_its_task(tmp_path: Path) -> None:
    files = write_study(
        tmp_path / "tables", n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=60
    )
    best, report, database = ending.summarise_run(tmp_path, VIEWS)
    named = best.split()[2]
    measured = {
        f"{r['model']}/{r['calibration']}/{r['selector']}/removed={r['removed']}/{r['repair']}/{r['healing']}": r
        for r in parquet.read_table(
            next(file for file in files if file.stem == "benchmarks")
        ).to_pylist()
    }
    assert named in measured and measured[named]["removed"] > 0
    assert " % of " in best and "documents) without" in best and "±" in best
    assert report.endswith("report.html") and "lamina.duckdb" in database


def test_without_such_a_variant_it_says_so(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", **{table: [] for table in parquet.TABLES})
    assert "none keeps 95 %" in ending.summarise_run(tmp_path, VIEWS)[0]


def test_a_base_model_that_guesses_is_named(tmp_path: Path) -> None:
    """Of two calibrations with four choices, the base model knows the task of one and guesses at the other."""
    random = np.random.default_rng(3)
    base = {
        "known": (random.random(400) < 0.9).astype(float),
        "guessed": (random.random(400) < 0.25).astype(float),
    }
    cut = {"known": base["known"] * (random.random(400) < 0.5), "guessed": base["guessed"]}
    variants = [(variant_key(name), cut) for name in ("c", "d")]
    asked = [{"calibration": "c", "source": "known"}, {"calibration": "d", "source": "guessed"}]
    connect_planted_tables(tmp_path / "tables", base, variants, asked).close()
    warnings = [
        line for line in ending.summarise_run(tmp_path, VIEWS) if line.startswith("warning")
    ]
    assert len(warnings) == 1
    assert "the base model guesses: m on d. " in warnings[0]


def test_of_a_study_that_prunes_nothing_it_says_which_layers_matter(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    written = write_study(folder, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)
    files = {file.stem: file for file in written}
    for name in ("benchmarks", "benchmark_samples", "plans", "patches", "efficiency"):
        parquet.write_table(files[name], parquet.read_table(files[name]).slice(0, 0))
    *layers, report, _ = ending.summarise_run(tmp_path, VIEWS)
    measured = {
        row["layer"]: row
        for row in parquet.read_table(files["relevance"]).to_pylist()
        if row["metric"] == "accuracy" and row["component"] == "layer" and row["selector"] == "base"
    }
    free = sorted((row["score"], -layer) for layer, row in measured.items() if row["ci_low"] <= 0)
    assert len(layers) == 1 and report.startswith("report")
    told = ", ".join(str(-layer) for _, layer in free[:5]) or "none"
    assert f"on recall: {told}" in layers[0] and f"of {len(measured)} layers can go" in layers[0]
