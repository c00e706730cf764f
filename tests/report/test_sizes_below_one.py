"""The base model beside plans of size 0 and below: its selector tells it from them."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from lamina_workflow.report import answers, explorer, variant_table
from lamina_workflow.report.ending import summarise_run
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.report.paired_tests import compare_selectors
from tests.given.planted_tables import connect_planted_tables, variant_key
from tests.given.plausible_tables import LAYER_SIZE

N_LAYERS = 12
# By selector: size, edits with their kind in table `plans`, and how many of 40 answers are right.
PLANS: dict[str, tuple[int, dict[str, str | None], int]] = {
    "swapped": (0, {"2<>3": "exchange"}, 36),
    "traded": (0, {"9": None, "4x2": "repetition"}, 30),
    "longer": (-2, {"5-6x2": "repetition"}, 39),
    "cut": (2, {"9": None, "10": None}, 33),
}
SIZES = {selector: size for selector, (size, _, _) in PLANS.items()}
MODEL = {
    "model": "m",
    "n_layers": N_LAYERS,
    "parameters": 1_000_000,
    "head_parameters": 0,
    "weights_bytes": 4_000_000,
}


def plan_rows(selector: str) -> list[dict[str, Any]]:
    size, edits, _ = PLANS[selector]
    return [
        {
            "model": "m",
            "calibration": "recall",
            "selector": selector,
            "removed": size,
            "unit": unit,
            "edit": edit,
            "position": position,
        }
        for position, (unit, edit) in enumerate(edits.items(), start=1)
    ]


def search_row(strategy: str, stage: str, loss: float) -> dict[str, Any]:
    key = {"model": "m", "calibration": "recall", "selector": "traded", "removed": 0}
    units = ["4x2", "9"] if strategy == "rearrange" else []
    counts = {"evaluation": 0, "step": 0, "n_samples": 20, "n_new": 20, "layer_tokens": 5.0}
    return {**key, **counts, "strategy": strategy, "units": units, "stage": stage, "loss": loss}


@pytest.fixture(scope="module")
def moved_run(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """Four plans, one of them repaired too, and the search that found one of size 0."""
    variants = []
    plans = []
    for selector, (size, _, n_right) in PLANS.items():
        variants.append((variant_key("recall", selector, size), {"t": np.arange(40) < n_right}))
        plans += plan_rows(selector)
    repaired = variant_key("recall", "traded", 0, "ghost")
    variants.append((repaired, {"t": np.arange(40) < 34}))
    return connect_planted_tables(
        tmp_path_factory.mktemp("moved"),
        {"t": np.arange(40) < 38},
        variants,
        [{"calibration": "recall", "source": "t"}],
        models=[MODEL],
        plans=plans,
        layer_sizes=[{**LAYER_SIZE, "model": "m", "layer": layer} for layer in range(N_LAYERS)],
        searches=[
            search_row("none", "winner", 2.0),
            search_row("none", "held back", 2.1),
            search_row("rearrange", "winner", 1.8),
            search_row("rearrange", "held back", 2.2),
        ],
    )


def test_every_plan_is_compared_with_the_base_model_and_not_with_another_plan(
    moved_run: duckdb.DuckDBPyConnection,
) -> None:
    rows = moved_run.execute(
        "SELECT selector, repair, value, base_value, kept, paired FROM scores"
    ).fetchall()

    value_by_variant = {row[:2]: row[2] for row in rows}
    assert value_by_variant == {
        ("none", "none"): 38 / 40,
        ("traded", "ghost"): 34 / 40,
        **{(selector, "none"): n_right / 40 for selector, (_, _, n_right) in PLANS.items()},
    }
    for selector, _, value, base_value, kept, paired in rows:
        assert base_value == 38 / 40
        assert kept == pytest.approx(value / base_value)
        assert paired == (selector != "none")


def test_a_plan_of_size_0_differs_from_the_base_model_on_its_documents(
    moved_run: duckdb.DuckDBPyConnection,
) -> None:
    rows = moved_run.execute(
        "SELECT selector, higher, lower, n_samples FROM paired_differences WHERE repair = 'none'"
    ).fetchall()

    assert {row[0]: row[1:] for row in rows} == {
        "swapped": (0, 2, 40),
        "traded": (0, 8, 40),
        "longer": (1, 0, 40),
        "cut": (0, 5, 40),
    }


def test_a_repair_of_a_plan_of_size_0_is_measured_by_what_it_gains(
    moved_run: duckdb.DuckDBPyConnection,
) -> None:
    [row] = moved_run.execute("SELECT selector, removed, gain, loss FROM repairs").fetchall()

    assert row[:2] == ("traded", 0)
    assert row[2:] == pytest.approx((4 / 40, 8 / 40))


def test_only_smaller_models_are_recommended(moved_run: duckdb.DuckDBPyConnection) -> None:
    [card] = answers.recommendations(moved_run, keep=0.5, general_text=None)

    assert (card["selector"], card["removed"]) == ("cut", 2)


def test_the_search_of_size_0_and_the_base_model_have_losses_of_their_own(
    moved_run: duckdb.DuckDBPyConnection,
) -> None:
    rows = answers.answer_question(moved_run, "what_searching_found")

    losses = {row["strategy"]: (row["search_loss"], row["loss"]) for row in rows}
    assert losses == {"none": (2.0, 2.1), "rearrange": (1.8, 2.2)}
    assert len(rows) == 2
    assert {(row["search_loss_base"], row["loss_base"]) for row in rows} == {(2.0, 2.1)}


def test_layers_that_run_again_are_read_again(moved_run: duckdb.DuckDBPyConnection) -> None:
    rows = moved_run.execute(
        "SELECT selector, parameters, estimated_speed_ratio FROM variant_sizes "
        "WHERE selector <> 'none' AND repair = 'none'"
    ).fetchall()

    layer = sum(LAYER_SIZE[f"{part}_parameters"] for part in ("attention", "mlp", "other"))
    n_removed = {"swapped": 0, "traded": 1, "longer": 0, "cut": 2}
    for selector, parameters, speed_ratio in rows:
        assert parameters == MODEL["parameters"] - n_removed[selector] * layer
        assert speed_ratio == pytest.approx(N_LAYERS / (N_LAYERS - SIZES[selector]))
    assert {row[0] for row in rows} == set(SIZES)


def test_the_base_model_comes_first_and_is_named_once(
    moved_run: duckdb.DuckDBPyConnection,
) -> None:
    rows = answers.query_rows(moved_run, variant_table.MEASURED)
    [table] = variant_table.tabulate_variants(rows, width=400)

    names = list(table.columns[1].cells)
    assert names[0] == "base model"
    assert names[1] == "recall/longer/removed=-2/none/none"
    assert sorted(names.count(name) for name in names) == [1] * 6
    assert list(table.columns[2].cells) == ["12", "14", "12", "12", "12", "10"]


def test_figures_draw_every_size_but_the_base_model(moved_run: duckdb.DuckDBPyConnection) -> None:
    points = explorer.list_points(explorer.list_variants(moved_run))

    drawn = {point["selector"] for point in points if "kept" in point}
    assert drawn == set(PLANS)


def test_selectors_are_compared_at_size_0(moved_run: duckdb.DuckDBPyConnection) -> None:
    comparisons = [row for row in compare_selectors(moved_run) if row["repair"] == "none"]

    assert {(row["removed"], row["selector"], row["rival"]) for row in comparisons} == {
        (0, "swapped", "traded")
    }
    assert comparisons[0]["difference"] == pytest.approx(6 / 40)


def test_the_ending_recommends_nothing_where_no_variant_is_smaller(tmp_path: Path) -> None:
    connect_planted_tables(
        tmp_path / "tables",
        {"t": np.ones(40)},
        [(variant_key("recall", "swapped", 0), {"t": np.arange(40) < 36})],
        [{"calibration": "recall", "source": "t"}],
        plans=plan_rows("swapped"),
    ).close()

    first_line, *_ = summarise_run(tmp_path)

    assert "none is smaller than the base model" in first_line


def test_a_curve_goes_through_the_base_model_between_smaller_and_larger_models(
    tmp_path: Path,
) -> None:
    """One selector with sizes -2, 0 and 2."""
    n_right = {-2: 37, 0: 33, 2: 25}
    variants = []
    plans = []
    for selector in ("longer", "traded", "cut"):
        size = SIZES[selector]
        variants.append((variant_key("recall", "s", size), {"t": np.arange(40) < n_right[size]}))
        plans += [{**row, "selector": "s"} for row in plan_rows(selector)]
    calibrations = [{"calibration": "recall", "source": "t"}]
    base_answers = {"t": np.arange(40) < 38}
    connection = connect_planted_tables(tmp_path, base_answers, variants, calibrations, plans=plans)

    [axes] = draw_figure("pruning_curves", connection).figure.axes

    [curve] = axes.containers
    points = list(zip(*curve.lines[0].get_data(), strict=True))
    assert points == [(-2, 37 / 40), (0, 38 / 40), (0, 33 / 40), (2, 25 / 40)]
    assert list(axes.get_xticks()) == [-2, 0, 2]
