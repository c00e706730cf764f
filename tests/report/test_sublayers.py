"""Attentions and MLPs are counted once: in sizes, runs, costs and comparisons of variants."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from lamina.models.surgery import find_runs
from lamina.models.units import parse_unit
from lamina_workflow.report import answers, formatting
from lamina_workflow.report.paired_tests import compare_selectors
from tests.given.planted_tables import connect_planted_tables, variant_key

N_LAYERS = 12
PlanRows = list[dict[str, Any]]


def plan_rows(selector: str, removed: int, units: list[str]) -> PlanRows:
    plan = {"model": "m", "calibration": "recall", "selector": selector, "removed": removed}
    return [
        {**plan, "unit": unit, "position": position} for position, unit in enumerate(units, start=1)
    ]


def write_plans(
    folder: Path, plans: list[PlanRows], n_right: dict[str, int], **tables: Any
) -> duckdb.DuckDBPyConnection:
    """A study with these plans; `n_right` of 40 documents are right, all of them for the base."""
    variants = []
    rows = []
    for plan in plans:
        selector = plan[0]["selector"]
        answers_of_task = {"t": np.arange(40) < n_right[selector]}
        variants.append((variant_key("recall", selector, plan[0]["removed"]), answers_of_task))
        rows += plan
    calibrations = [{"calibration": "recall", "source": "t"}]
    return connect_planted_tables(
        folder, {"t": np.ones(40)}, variants, calibrations, plans=rows, **tables
    )


@pytest.fixture(scope="module")
def sublayer_run(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """Four plans of two units; `cheap` and `both` count their sub-layers by what they save."""
    plans = [
        plan_rows("both", 2, ["1.attention", "2.attention", "3.mlp", "5.attention"]),
        plan_rows("cheap", 2, [f"{layer}.attention" for layer in range(5)]),
        plan_rows("layers", 2, ["4", "7"]),
        plan_rows("attentions", 2, ["1.attention", "2.attention"]),
    ]
    n_right = {"both": 38, "cheap": 37, "layers": 36, "attentions": 39}
    return write_plans(tmp_path_factory.mktemp("sublayers"), plans, n_right)


def test_sublayers_count_as_many_layers_as_their_size_says(
    sublayer_run: duckdb.DuckDBPyConnection,
) -> None:
    rows = answers.query_rows(sublayer_run, "SELECT selector, layers, component FROM removal_order")

    assert {row["selector"]: (row["layers"], row["component"]) for row in rows} == {
        "both": (2, "both"),
        "cheap": (2, "both"),
        "layers": (2, "layer"),
        "attentions": (1, "attention"),
    }


@pytest.mark.parametrize(
    ("keep", "selector", "n_layers"), [(0.8, "both", 2), (0.97, "attentions", 1)]
)
def test_two_layers_worth_of_sublayers_is_a_larger_removal_than_two_attentions(
    sublayer_run: duckdb.DuckDBPyConnection, keep: float, selector: str, n_layers: int
) -> None:
    [card] = answers.answer_question(sublayer_run, "which_model_to_take", keep=keep)

    assert card["selector"] == selector
    assert card["layers"] == n_layers


@pytest.fixture(scope="module")
def random_units() -> dict[str, list[str]]:
    """Thirty random sets of sub-layers, and two sets with a layer replaced by another model's."""
    rng = np.random.default_rng(0)
    sublayers = []
    for layer in range(N_LAYERS):
        sublayers += [f"{layer}.attention", f"{layer}.mlp"]
    units = {"replaced": ["3=math:3"], "layers": ["3", "4", "9", "5=math:5"]}
    for set_index in range(30):
        size = int(rng.integers(1, 9))
        units[f"s{set_index}"] = rng.choice(sublayers, size, replace=False).tolist()
    return units


@pytest.fixture(scope="module")
def random_removals(
    tmp_path_factory: pytest.TempPathFactory, random_units: dict[str, list[str]]
) -> dict[str, dict[str, Any]]:
    """By selector: what the views say of its plan."""
    plans = []
    for selector, units in random_units.items():
        rows = plan_rows(selector, len(units), units)
        for row in rows:
            row["edit"] = "replacement" if "=" in row["unit"] else None
        plans.append(rows)
    n_right = dict.fromkeys(random_units, 30)
    connection = write_plans(tmp_path_factory.mktemp("random"), plans, n_right)
    rows = answers.query_rows(connection, "SELECT selector, runs, composition FROM removal_order")
    return {row["selector"]: row for row in rows}


def test_runs_of_removed_units_are_those_of_the_model(
    random_units: dict[str, list[str]], random_removals: dict[str, dict[str, Any]]
) -> None:
    assert random_removals.keys() == random_units.keys()
    for selector, units in random_units.items():
        assert random_removals[selector]["runs"] == len(find_runs(units, N_LAYERS)), units


def test_plans_have_one_composition_where_as_many_layers_lack_the_same(
    random_units: dict[str, list[str]], random_removals: dict[str, dict[str, Any]]
) -> None:
    """A layer that lacks attention and MLP also loses its norms; two layers keep theirs."""
    composition_by_selector = {}
    for selector, units in random_units.items():
        lacking: dict[int, set[str]] = {}
        for layer, component in map(parse_unit, units):
            lacking.setdefault(layer, set()).add(component)
        composition_by_selector[selector] = Counter(map(frozenset, lacking.values()))
    for first, first_composition in composition_by_selector.items():
        for second, second_composition in composition_by_selector.items():
            is_one = random_removals[first]["composition"] == random_removals[second]["composition"]
            assert is_one == (first_composition == second_composition), (first, second)


def test_attentions_are_not_compared_with_as_many_layers(tmp_path: Path) -> None:
    plans = [
        plan_rows("attentions", 2, ["1.attention", "2.attention"]),
        plan_rows("mlps", 2, ["1.mlp", "2.mlp"]),
        plan_rows("layers", 2, ["4", "7"]),
        plan_rows("both", 2, ["1.attention", "2.attention", "3.mlp"]),
    ]
    n_right = {"attentions": 38, "mlps": 38, "layers": 30, "both": 34}
    connection = write_plans(tmp_path, plans, n_right)

    comparisons = compare_selectors(connection)

    pairs = {frozenset((row["selector"], row["rival"])) for row in comparisons}
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
