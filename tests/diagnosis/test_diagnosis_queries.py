"""How well diagnoses show which layers can be removed: correlations in SQL against scipy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lamina_workflow.report import answers, database
from tests import ROOT
from tests.given.plausible_tables import write_tables

N_LAYERS = 9


def test_correlations_with_relevance_are_those_of_scipy(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    void_shares = generator.integers(0, 4, N_LAYERS) / 4
    scores = generator.normal(size=N_LAYERS)
    diagnosis_keys: dict[str, Any] = {
        "model": "m",
        "calibration": "c",
        "n_samples": 30,
        "diagnosis": "d",
        "kind": "void",
        "measure": "void",
    }
    relevance_keys: dict[str, Any] = {
        "model": "m",
        "calibration": "c",
        "n_samples": 30,
        "selector": "base",
        "removed": 0,
        "metric": "accuracy",
        "component": "layer",
    }
    diagnosis_rows: list[dict[str, Any]] = []
    relevance_rows: list[dict[str, Any]] = []
    for layer in range(N_LAYERS):
        diagnosis_rows.append(diagnosis_keys | {"layer": layer, "value": void_shares[layer]})
        unit = {"unit": str(layer), "layer": layer, "score": scores[layer]}
        relevance_rows.append(relevance_keys | unit)
    tables = write_tables(tmp_path, diagnoses=diagnosis_rows, relevance=relevance_rows)

    query = ROOT / "sql/queries/which_diagnosis_tells_what_can_go.sql"
    connection = database.connect_views(tables)
    rows = answers.query_rows(connection, query.read_text(encoding="utf-8"))

    rows_by_measure = {row["measure"]: row for row in rows}
    for measure, values in (("void", void_shares), ("depth", np.arange(N_LAYERS))):
        row = rows_by_measure[measure]
        pearson = stats.pearsonr(values, scores).statistic
        spearman = stats.spearmanr(values, scores).statistic
        assert row["pearson"] == pytest.approx(pearson, abs=1e-3)
        assert row["spearman"] == pytest.approx(spearman, abs=1e-3)
        assert row["ci_low"] < spearman < row["ci_high"]
        assert row["n_layers"] == N_LAYERS
