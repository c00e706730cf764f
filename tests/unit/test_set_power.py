"""The benchmark of sets on planted ones: what they cost, what tells it, and how good the winner looks."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lamina.relevance.columns import Columns, Context, from_table
from lamina.store import parquet as store
from tests.unit.test_expected_accuracy import table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAYERS, QUESTIONS = 12, 1200


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts, which import each other as scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return {name: importlib.import_module(name) for name in ("measure_sets", "set_power")}


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, Columns]:
    """Layer k costs more the deeper it stands; scores (layers + 1, questions, choices), and their sweep."""
    draw = np.random.default_rng(0)
    base = draw.normal(0, 1.5, (QUESTIONS, 4))
    base[:, 0] += 2
    moved = base + draw.normal(0, 0.3, (LAYERS, QUESTIONS, 4))
    moved[..., 0] -= np.linspace(0, 0.8, LAYERS)[:, None]
    scores = np.concatenate([base[None], moved])
    return scores, from_table(table(scores))


@pytest.fixture
def folder(tmp_path: Path, modules: dict[str, ModuleType], planted: tuple[np.ndarray, Columns]) -> Path:
    """Sets of two layers, whose losses add up, measured on the questions that judge, in two rounds."""
    scores, columns = planted
    sets = [{"size": 2, **each} for each in modules["measure_sets"].sets(columns, Context(0.25, "acc"), 2)]
    told = {"model": "m", "calibration": "c", "score": "acc", "sets": sets}
    (tmp_path / "sets.json").write_text(json.dumps(told))
    _, judging = modules["measure_sets"].questions(QUESTIONS)
    for number, part in enumerate(np.array_split(judging, 2)):
        rows: list[dict[str, Any]] = []
        for name in ["none", *sorted({" ".join(each["units"]) for each in sets})]:
            removed = [] if name == "none" else [int(unit) for unit in name.split()]
            left = scores[0] + sum((scores[layer + 1] - scores[0] for layer in removed), np.zeros(()))
            for question in part.tolist():
                margin = left[question, 0] - left[question, 1:].max()
                row = {"unit": name, "sample": question, "correct": bool(margin > 0), "correct_norm": False}
                rows.append(row | {"nll": float(-left[question, 0]), "gold_margin_norm": float(margin)})
        store.write(tmp_path / f"round={number}.parquet", pa.Table.from_pylist(rows), {})
    return tmp_path


def test_sets_are_chosen_and_judged_by_different_questions(
    modules: dict[str, ModuleType], planted: tuple[np.ndarray, Columns]
) -> None:
    choosing, judging = modules["measure_sets"].questions(QUESTIONS)
    assert set(choosing).isdisjoint(judging) and len(choosing) + len(judging) == QUESTIONS
    sets = list(modules["measure_sets"].sets(planted[1], Context(0.25, "acc"), 2))
    assert all(len(set(each["units"])) == 2 for each in sets)
    assert sum(each["by"] == "drawn" for each in sets) == modules["measure_sets"].DRAWN
    changed = np.array(planted[1].values["correct"])
    changed[:, judging] = 0
    blind = Columns(planted[1].units, {**planted[1].values, "correct": changed}, planted[1].seen)
    assert list(modules["measure_sets"].sets(blind, Context(0.25, "acc"), 2)) == sets


def test_what_sets_cost_and_what_tells_it(
    modules: dict[str, ModuleType], planted: tuple[np.ndarray, Columns], folder: Path
) -> None:
    power, (scores, columns) = modules["set_power"], planted
    measured = power.Measured(folder)
    assert measured.count == QUESTIONS // 2
    rows = {(row["by"], row["questions"]): row for row in power.chosen(measured)}
    assert rows["accuracy", 400]["more_than_reference"] == 0
    drawn, best = rows["drawn", 0], rows["margin", 400]
    assert drawn["lost"] > best["lost"] and best["lost_low"] < best["lost"] < best["lost_high"]
    one = next(each for each in measured.sets if (each["by"], each["questions"], each["draw"]) == ("margin", 400, 0))
    _, judging = modules["measure_sets"].questions(QUESTIONS)
    left = scores[0] + sum(scores[int(unit) + 1] - scores[0] for unit in one["units"])
    right = [scene[judging, 0] > scene[judging, 1:].max(1) for scene in (scores[0], left)]
    lost = measured.lost[measured.row[" ".join(one["units"])]].mean()
    assert lost == pytest.approx(right[0].mean() - right[1].mean())
    found = {
        (row["score"], row["questions"]): row for row in power.predictors(measured, columns, Context(0.25, "acc"), [2])
    }
    assert found["sum of margin", 400]["spearman"] > 0.8 and found["own margin", 75]["spearman"] > 0.5
    assert found["sum of accuracy", 75]["spearman"] < found["sum of margin", 400]["spearman"]


def test_the_best_of_many_looks_better_than_it_is(modules: dict[str, ModuleType], folder: Path) -> None:
    power = modules["set_power"]
    rows = {(row["by"], row["questions"]): row for row in power.winner(power.Measured(folder), [2])}
    few = rows["own accuracy", 75]
    assert few["seems"] < few["costs"] and few["best_possible"] < few["costs"]
