"""Attentions and MLPs are counted once: in sizes, in runs, in what a variant costs, and in who is compared with whom."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from lamina.evaluation.efficiency import describe_composition
from lamina.models.surgery import find_runs
from lamina_workflow.report import answers, formatting
from lamina_workflow.report.paired_tests import compare_selectors
from tests.given.planted_tables import connect_planted_tables, variant_key

N_LAYERS = 12


def plan(selector: str, removed: int, units: list[str]) -> list[dict[str, Any]]:
    key = {"model": "m", "calibration": "recall", "selector": selector, "removed": removed}
    return [key | {"unit": unit, "position": place} for place, unit in enumerate(units, 1)]


def benchmarked(
    folder: Path, plans: list[list[dict[str, Any]]], n_right: dict[str, int], **tables: Any
) -> duckdb.DuckDBPyConnection:
    """Each plan's variant answers so many of 40 documents rightly; the base model answers all."""
    variants = [
        (
            variant_key("recall", rows[0]["selector"], rows[0]["removed"]),
            {"t": np.arange(40) < n_right[rows[0]["selector"]]},
        )
        for rows in plans
    ]
    calibrations = [{"calibration": "recall", "source": "t"}]
    every = [row for rows in plans for row in rows]
    return connect_planted_tables(
        folder, {"t": np.ones(40)}, variants, calibrations, plans=every, **tables
    )


def test_sublayers_of_both_kinds_count_what_their_size_says(tmp_path: Path) -> None:
    """Two layers' worth is more than two attentions, which are one layer's."""
    plans = [
        plan("both", 2, ["1.attention", "2.attention", "3.mlp", "5.attention"]),
        plan("cheap", 2, [f"{layer}.attention" for layer in range(5)]),  # of `both`, by latency
        plan("layers", 2, ["4", "7"]),
        plan("attentions", 2, ["1.attention", "2.attention"]),
    ]
    connection = benchmarked(
        tmp_path, plans, {"both": 38, "cheap": 37, "layers": 36, "attentions": 39}
    )
    found = answers.query_rows(connection, "SELECT selector, layers, component FROM removal_order")
    assert {row["selector"]: (row["layers"], row["component"]) for row in found} == {
        "both": (2, "both"),
        "cheap": (2, "both"),
        "layers": (2, "layer"),
        "attentions": (1, "attention"),
    }
    (taken,) = answers.answer_question(connection, "which_model_to_take", keep=0.8)
    assert (taken["selector"], taken["layers"]) == ("both", 2)
    (taken,) = answers.answer_question(connection, "which_model_to_take", keep=0.97)
    assert (taken["selector"], taken["layers"]) == ("attentions", 1)


def test_runs_and_compositions_are_those_of_the_models(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"{layer}{part}" for layer in range(N_LAYERS) for part in (".attention", ".mlp")]
    drawn: dict[str, list[str]] = {"replaced": ["3.@math"], "layers": ["3", "4", "9", "5.@math"]}
    for number in range(30):
        size = int(rng.integers(1, 9))
        drawn[f"s{number}"] = [str(unit) for unit in rng.choice(names, size, replace=False)]
    plans = []
    for selector, units in drawn.items():
        rows = plan(selector, len(units), units)
        plans.append([row | {"donor": row["unit"].partition("@")[2] or None} for row in rows])
    connection = benchmarked(tmp_path, plans, dict.fromkeys(drawn, 30))
    found = answers.query_rows(connection, "SELECT selector, runs, composition FROM removal_order")
    assert {row["selector"]: row["runs"] for row in found} == {
        selector: len(find_runs(units, N_LAYERS)) for selector, units in drawn.items()
    }
    compositions = {row["selector"]: row["composition"] for row in found}
    for one, units in drawn.items():
        for other, others in drawn.items():
            same = describe_composition(units) == describe_composition(others)
            assert (compositions[one] == compositions[other]) == same, (units, others)


def test_an_untimed_plan_has_the_cost_of_its_own_composition_alone(tmp_path: Path) -> None:
    plans = [
        plan("timed", 2, ["1.attention", "2.attention", "3.mlp"]),
        plan("alike", 2, ["7.mlp", "5.attention", "9.attention"]),
        plan("whole", 2, ["1.attention", "1.mlp", "4.attention"]),  # layer 1 leaves with its norms
        plan("other", 2, ["1.attention", "2.mlp", "3.mlp"]),
    ]
    cost = {"parameters_ratio": 0.8, "latency_ratio": 0.7}
    names = [rows[0]["selector"] for rows in plans]
    connection = benchmarked(
        tmp_path,
        plans,
        dict.fromkeys(names, 30),
        efficiency=[variant_key("recall", "timed", 2) | cost],
    )
    found = answers.query_rows(
        connection, "SELECT selector, parameters_ratio FROM variants WHERE removed > 0"
    )
    assert {row["selector"]: row["parameters_ratio"] for row in found} == {
        "timed": 0.8,
        "alike": 0.8,
        "whole": None,
        "other": None,
    }


def test_so_many_attentions_are_not_compared_with_so_many_layers(tmp_path: Path) -> None:
    plans = [
        plan("attentions", 2, ["1.attention", "2.attention"]),
        plan("mlps", 2, ["1.mlp", "2.mlp"]),
        plan("layers", 2, ["4", "7"]),
        plan("both", 2, ["1.attention", "2.attention", "3.mlp"]),
    ]
    connection = benchmarked(
        tmp_path, plans, {"attentions": 38, "mlps": 38, "layers": 30, "both": 34}
    )
    pairs = {frozenset((row["selector"], row["rival"])) for row in compare_selectors(connection)}
    assert pairs == {frozenset(("attentions", "mlps")), frozenset(("layers", "both"))}


@pytest.mark.parametrize(
    ("removed", "component", "words"),
    [
        (3, "layer", "3 of 12 layers"),
        (3, "both", "sub-layers worth 3 of 12 layers"),
        (3, "mlp", "3 MLP sub-layers"),
        (1, "attention", "1 attention sub-layer"),
    ],
)
def test_a_recipe_is_named_by_what_it_removes(removed: int, component: str, words: str) -> None:
    row = {"units": None, "removed": removed, "component": component}
    assert formatting.describe_removal(row, N_LAYERS) == words
