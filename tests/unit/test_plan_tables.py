"""The table of what variants are worth, on planted documents."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from lamina.tables import store
from tests.unit.planted_tables import BASE, measured, variant

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_variants_are_compared_document_by_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan loses 30 of 100 answers, and a repair gives 20 of them back, which another run has measured."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    plan_tables = importlib.import_module("plan_tables")
    whole, cut, mended = np.ones(100), np.repeat([1.0, 0.0], [70, 30]), np.repeat([1.0, 0.0], [90, 10])
    here = [(BASE, {"task": whole, "text": np.full(5, 2.0)}), (variant("task"), {"task": cut, "text": np.full(5, 3.0)})]
    for folder, of in (("one", here), ("more", [(variant("task", recovery="ghost"), {"task": mended})])):
        samples = [sample for key, documents in of for sample in measured(key, documents)[1]]
        (tmp_path / folder / "tables").mkdir(parents=True)
        store.write(
            tmp_path / folder / "tables/benchmark_samples.parquet", store.from_rows("benchmark_samples", samples)
        )
    values = plan_tables.Values([tmp_path / "one", tmp_path / "more"], "acc_norm")
    by_recovery = {(row["removed"], row["recovery"]): row for row in plan_tables.rows(values)}
    base, bare, repaired = by_recovery[0, "none"], by_recovery[1, "none"], by_recovery[1, "ghost"]
    assert (base["accuracy"], base["lost"], base["nll_text"]) == (1, 0, 2)
    assert (bare["accuracy"], bare["lost"], bare["nll_text"], bare["n"]) == (0.7, 0.3, 3, 100)
    # 1.96 √(.3 · .7 / 100) = .09: the bootstrap's interval is as wide.
    assert bare["lost_high"] - bare["lost_low"] == pytest.approx(0.18, rel=0.15)
    assert (repaired["lost"], repaired["regained"]) == (0.1, 0.2) and "regained" not in bare
    # Paired: 20 of 100 documents differ.
    assert repaired["regained_high"] - repaired["regained_low"] == pytest.approx(2 * 1.96 * 0.04, rel=0.15)
    means = {row["what"]: row for row in plan_tables.pooled(values)}
    assert means["recovery regains"]["points"] == 0.2 and means["selector loses"]["points"] == 0.3
    assert means["recovery regains"]["points_low"] == repaired["regained_low"]
