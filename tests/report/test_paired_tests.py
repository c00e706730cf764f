"""Paired tests between selectors: against scipy, by simulation, and from the tables of a run."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lamina.store import parquet
from lamina_workflow.report import answers, database, paired_tests, summary
from tests.given.plausible_tables import VIEWS, write_tables


def test_right_and_wrong_answers_give_mcnemars_exact_test() -> None:
    differences = np.repeat([1.0, -1.0, 0.0], [9, 2, 50])
    assert paired_tests.compute_sign_flip_p_value(differences) == pytest.approx(
        stats.binomtest(9, 11).pvalue
    )
    assert paired_tests.compute_sign_flip_p_value(differences / 7) == pytest.approx(
        stats.binomtest(9, 11).pvalue
    )
    assert paired_tests.compute_sign_flip_p_value(np.zeros(5)) == 1


def test_other_values_are_flipped_as_all_flips_would_be() -> None:
    values = np.random.default_rng(1).normal(0.4, 1, 12)
    every = np.array(list(product([-1, 1], repeat=12))) @ values
    exact = np.mean(np.abs(every) >= abs(values.sum()) - 1e-9)
    assert paired_tests.compute_sign_flip_p_value(values) == pytest.approx(exact, abs=0.02)
    many = np.random.default_rng(2).normal(0.2, 1, 60)
    signs = np.random.default_rng(3).choice([-1, 1], (20000, 60))
    assert paired_tests.compute_sign_flip_p_value(many) == pytest.approx(
        np.mean(abs(signs @ many) >= abs(many.sum())), abs=0.02
    )


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order() -> None:
    assert paired_tests.correct_by_holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx(
        [0.09, 0.04, 0.09, 0.5]
    )
    assert (
        paired_tests.correct_by_holm([0.9, 0.6]) == [1, 1]
        and paired_tests.correct_by_holm([]) == []
    )


def tables(
    folder: Path, right: dict[str, dict[str, list[int]]]
) -> database.duckdb.DuckDBPyConnection:
    """A study of selectors that answered these documents of a calibration's own task, one unit removed."""
    data: dict[str, list[dict]] = {"calibrations": [], "benchmarks": [], "benchmark_samples": []}
    base = dict(
        model="m", calibration="none", selector="none", removed=0, repair="none", healing="none"
    )
    for task in {task for of in right.values() for task in of}:
        data["calibrations"].append(
            dict(model="m", calibration=task, kind="choices", source=task, chance_accuracy=0.0)
        )
        for selector, chosen in {"none": {task: [1] * 20}, **right}.items():
            variant = (
                base
                if selector == "none"
                else base | dict(calibration=task, selector=selector, removed=1)
            )
            row = variant | dict(task=task, metric="acc")
            values = chosen.get(task, [])
            if values:
                data["benchmarks"].append(
                    row | dict(value=np.mean(values), stderr=0.1, higher_is_better=True)
                )
            data["benchmark_samples"] += [
                row | dict(sample=n, value=float(v)) for n, v in enumerate(values)
            ]
    return database.connect_views(VIEWS, write_tables(folder, **data))


def test_selectors_of_a_study_are_compared_on_the_documents_that_both_answered(
    tmp_path: Path,
) -> None:
    right = {
        "accuracy": {"sums": [1] * 20, "facts": [1] * 10 + [0] * 10},
        "cosine": {"sums": [0] * 12 + [1] * 8, "facts": [1] * 9 + [0] * 11},
        "deepest": {"sums": [0] * 6 + [1] * 14},
    }
    found = list(paired_tests.compare_selectors(tables(tmp_path, right)))
    by = {(row["selector"], row["rival"], row["task"]): row for row in found}
    assert set(by) == {
        *(("accuracy", "cosine", task) for task in ("sums", "facts", "all")),
        *(("accuracy", "deepest", task) for task in ("sums", "all")),
        *(("cosine", "deepest", task) for task in ("sums", "all")),
    }
    one = by["accuracy", "cosine", "sums"]
    assert (one["difference"], one["n_samples"], one["n_different"]) == (pytest.approx(0.6), 20, 12)
    assert one["p_value"] == pytest.approx(2 / 2**12) and one["p_holm"] == pytest.approx(
        4 * 2 / 2**12
    )
    mean = by["accuracy", "cosine", "all"]
    assert (mean["difference"], mean["n_samples"]) == (pytest.approx((0.6 + 0.05) / 2), 40)
    assert mean["p_value"] == pytest.approx(2 / 2**13) and mean["p_holm"] == pytest.approx(
        3 * 2 / 2**13
    )
    assert by["cosine", "deepest", "sums"]["difference"] == pytest.approx(-0.3)

    parquet.write_table(tmp_path / "comparisons.parquet", parquet.from_rows("comparisons", found))
    views = database.connect_views(
        VIEWS, [tmp_path / f"{table}.parquet" for table in parquet.TABLES]
    )
    query = (VIEWS.parent / "queries" / "which_selector_wins.sql").read_text(encoding="utf-8")
    told = {(row["selector"], row["rival"]): row for row in answers.query_rows(views, query)}
    first = told["accuracy", "cosine"]
    assert (first["winner"], first["better"], first["worse"], first["undecided"]) == (
        "accuracy",
        1,
        0,
        1,
    )
    sentence, table = summary.compare_selectors(views, [])
    assert isinstance(table, list) and "selector accuracy against the others" in sentence
    found = {row["against"]: list(row.values())[1:] for row in table}
    assert found["cosine"] == [1, 0, 1, "+32.5"] and found["deepest"][:3] == [0, 0, 1]
