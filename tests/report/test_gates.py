"""Gates: variants with planted answers pass, fail or cannot be told, by intervals of the test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import binom

from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.report import database
from lamina_workflow.report.answers import answer_question, query_rows, recommendations
from lamina_workflow.report.page import render_report
from lamina_workflow.report.recommendation import judge
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.report import GatherTable
from lamina_workflow.study import requests
from tests import ROOT
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.planted_tables import connect_planted_tables, variant_key
from tests.given.plausible_tables import write_study

N_QUESTIONS = 400
GOOD = variant_key("c", removed=2)
DAMAGED = variant_key("c", removed=4)
BETWEEN = variant_key("c", removed=3)
# Right answers of 400.
N_RIGHT = {2: 290, 3: 268, 4: 160}
N_RIGHT_OF_BASE = 300


def answers(n_right: int) -> np.ndarray:
    """The variant and the base model answer the first questions right."""
    return (np.arange(N_QUESTIONS) < n_right).astype(float)


def demand(key: Mapping[str, Any], task: str = "c", **limit: float) -> dict[str, Any]:
    return {**key, "task": task, "keep": None, "floor": None, **limit}


def connect_gates(folder: Path, gates: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    """Views of three variants with these gates."""
    variants = [(key, {"c": answers(N_RIGHT[key["removed"]])}) for key in (GOOD, BETWEEN, DAMAGED)]
    return connect_planted_tables(
        folder,
        {"c": answers(N_RIGHT_OF_BASE)},
        variants,
        [{"calibration": "c", "source": "c"}],
        gates=gates,
    )


def results_by_size(connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
    return {row["removed"]: row["result"] for row in query_rows(connection, "FROM gate_results")}


def test_a_share_of_the_base_model_is_passed_failed_or_not_told_apart(tmp_path: Path) -> None:
    gates = [demand(key, keep=0.9) for key in (GOOD, BETWEEN, DAMAGED)]

    results = results_by_size(connect_gates(tmp_path, gates))

    # 290, 268 and 160 of the base model's 300 right answers, 270 being demanded.
    assert results == {2: "passed", 3: "not told apart", 4: "failed"}


@pytest.mark.parametrize("floor", [0.6, 0.66, 0.7, 0.72, 0.8])
def test_a_value_is_told_as_an_exact_test_of_the_answers_tells_it(
    tmp_path: Path, floor: float
) -> None:
    connection = connect_gates(tmp_path, [demand(GOOD, floor=floor)])

    n_right = N_RIGHT[2]
    p_above = binom.sf(n_right - 1, N_QUESTIONS, floor)
    p_below = binom.cdf(n_right, N_QUESTIONS, floor)
    expected = "passed" if p_above < 0.025 else "failed" if p_below < 0.025 else "not told apart"
    assert results_by_size(connection) == {2: expected}


def test_a_gate_on_a_task_without_a_score_says_so(tmp_path: Path) -> None:
    connection = connect_gates(tmp_path, [demand(GOOD, task="elsewhere", keep=0.5)])

    [row] = answer_question(connection, "which_gates_are_passed")

    assert (row["result"], row["reason"]) == ("not told apart", "not measured")


def test_a_variant_that_fails_a_gate_is_not_recommended(tmp_path: Path) -> None:
    """Without gates, the smallest model that keeps half is taken."""
    ungated = connect_gates(tmp_path / "ungated", [])
    gated = connect_gates(tmp_path / "gated", [demand(DAMAGED, keep=0.9)])

    for connection, n_removed in ((ungated, 4), (gated, 3)):
        rows = recommendations(connection, 0.5, None)
        [row] = [row for row in rows if row["question"] == "task"]
        assert row["kept_enough"]
        assert row["removed"] == n_removed


def test_where_every_variant_fails_none_is_recommended(tmp_path: Path) -> None:
    gates = [demand(key, floor=0.99) for key in (GOOD, BETWEEN, DAMAGED)]

    rows = recommendations(connect_gates(tmp_path, gates), 0.5, None)

    [row] = [row for row in rows if row["question"] == "task"]
    assert not row["kept_enough"]
    assert judge(row, 0.5, None).text == "It fails the gate of its study on c."


def test_a_recommendation_says_which_gate_cannot_be_told(tmp_path: Path) -> None:
    gates = [demand(DAMAGED, keep=0.9), demand(BETWEEN, keep=0.9)]

    rows = recommendations(connect_gates(tmp_path, gates), 0.5, None)

    [row] = [row for row in rows if row["question"] == "task"]
    verdict = judge(row, 0.5, None)
    assert (row["removed"], row["kept_enough"], row["certain"]) == (3, True, False)
    assert "cannot decide whether it passes the gate of its study on c" in verdict.text
    assert not verdict.is_significant


def test_the_tasks_of_gates_are_measured_and_every_variant_has_a_row(tmp_path: Path) -> None:
    raw = minimal_config()
    set_key(raw, "studies.prune.tasks", [])
    set_key(raw, "studies.prune.gates", [{"task": "microworld_recall", "keep": "90%"}])

    config = load_configuration(raw, write_model_and_data(tmp_path))

    variants = requests.list_variants(config)
    gates = requests.list_gates(config)
    assert [variant for variant, _ in gates] == variants
    assert {gate.keep for _, gate in gates} == {0.9}
    assert all(requests.list_tasks(config, each) == ["microworld_recall"] for each in variants)
    job = GatherTable.of(config, Wildcards(table="gates"))
    rows = parquet.from_rows("gates", job.gates).to_pylist()
    assert [Variant.of(row) for row in rows] == variants
    assert {(row["task"], row["keep"], row["floor"]) for row in rows} == {
        ("microworld_recall", 0.9, None)
    }


def test_gates_measure_a_calibration_that_has_no_task_of_its_own(tmp_path: Path) -> None:
    raw = minimal_config()
    set_key(raw, "benchmarks.tasks", {"microworld_facts": {}})
    set_key(raw, "studies.prune.tasks", "own")
    set_key(raw, "studies.prune.perplexity", [])
    set_key(raw, "studies.prune.gates", [{"task": "microworld_facts", "floor": 0.5}])

    config = load_configuration(raw, write_model_and_data(tmp_path))

    for variant in requests.list_variants(config):
        assert requests.list_tasks(config, variant) == ["microworld_facts"]


def test_the_page_has_a_row_for_each_gate(tmp_path: Path) -> None:
    files = write_study(tmp_path, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=40)
    keys = parquet.read_table(tmp_path / "handles.parquet").drop_columns("handle").to_pylist()
    gates = [demand(key, task="microworld_recall", keep=0.1) for key in keys]
    gates.append(demand(keys[0], task="microworld_recall", floor=0.99))
    parquet.write_table(tmp_path / "gates.parquet", parquet.from_rows("gates", gates))

    with database.connect_views(files) as connection:
        html = render_report(connection, [], ROOT / "workflow/report/report.html.j2", {})

    _, _, rest = html.partition('<section id="gates">')
    section, _, _ = rest.partition("</section>")
    assert section.count("<tr>") == 1 + len(gates)
    assert section.count("<td>passed</td>") == len(keys)
    assert section.count("<td>failed</td>") == 1
    assert "<th>gates</th>" in rest
