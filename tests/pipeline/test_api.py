"""The functions of `lamina` give the numbers of the workflow: against the tiny study, finished."""

from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.api.inputs import PreparedCalibration, PreparedModel
from lamina.api.variants import PrunedModel
from lamina.repairs import patch
from lamina.store import checksum, parquet
from tests.pipeline.project import Project

KEY = "reference/recall/accuracy"


@pytest.fixture(scope="module")
def base(finished: Project) -> PreparedModel:
    with chdir(finished.folder):
        return lamina.open_model("resources/reference", name="reference", dtype="float32")


@pytest.fixture(scope="module")
def recall(finished: Project, base: PreparedModel) -> PreparedCalibration:
    with chdir(finished.folder):
        return lamina.prepare(base, "recall", task="microworld_recall", limit=40)


@pytest.fixture(scope="module")
def pruned(base: PreparedModel, recall: PreparedCalibration) -> list[PrunedModel]:
    return lamina.select(
        base, recall, removed=[1, 2], name="accuracy", metric="accuracy", protect=[0, -1]
    )


@pytest.fixture(scope="module")
def repaired(pruned: list[PrunedModel]) -> PrunedModel:
    return lamina.repair(pruned[1], method="ghost")


@pytest.fixture(scope="module")
def healed(repaired: PrunedModel, tmp_path_factory: pytest.TempPathFactory) -> PrunedModel:
    folder = tmp_path_factory.mktemp("healed")
    return lamina.heal(repaired, folder, method="lora", max_steps=4, batch=8, warmup_steps=1)


def approximate(value: Any) -> Any:
    """Numbers of two processes differ by what their threads round; None is not measured."""
    return None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)


def test_plans_are_those_of_the_workflow(finished: Project, pruned: list[PrunedModel]) -> None:
    for variant in pruned:
        file = finished.folder / f"results/plans/{KEY}/removed={variant.plan.removed}.json"
        expected = checksum.read_json(file)
        scores = expected.pop("scores")
        plan = asdict(variant.plan)
        assert plan.pop("scores") == approximate(scores)
        assert plan == {name: expected[name] for name in plan}


def test_a_step_by_the_streams_has_the_plan_of_the_workflow(
    finished: Project, base: PreparedModel, recall: PreparedCalibration
) -> None:
    (variant,) = lamina.select(base, recall, removed=[2], name="cosine", metric="cosine")

    file = finished.folder / "results/plans/reference/recall/cosine/removed=2.json"
    expected = checksum.read_json(file)
    assert variant.plan.units == expected["units"]
    assert variant.plan.scores == approximate(expected["scores"])


def test_a_repair_is_that_of_the_workflow(finished: Project, repaired: PrunedModel) -> None:
    expected = patch.read_patch(finished.folder / f"results/patches/{KEY}/ghost.safetensors", 2)

    assert repaired.patches is not None
    assert repaired.patches.keys() == expected.keys()
    for boundary, fitted in repaired.patches.items():
        assert fitted.method == expected[boundary].method
        for name, tensor in fitted.tensors.items():
            expected_tensor = expected[boundary].tensors[name]
            torch.testing.assert_close(tensor, expected_tensor, rtol=1e-3, atol=1e-4)


def test_a_training_is_that_of_the_workflow(finished: Project, healed: PrunedModel) -> None:
    curve = f"results/adapters/{KEY}/removed=2/ghost/lora/training.parquet"
    expected = parquet.read_table(finished.folder / curve).to_pylist()

    assert healed.adapter is not None
    rows = parquet.read_table(healed.adapter / "training.parquet").to_pylist()
    assert len(rows) == len(expected)
    for row, expected_row in zip(rows, expected, strict=True):
        assert row["loss"] == approximate(expected_row["loss"])
        assert row["validation_loss"] == approximate(expected_row["validation_loss"])


def test_measurements_are_those_of_the_workflow(
    finished: Project, pruned: list[PrunedModel], repaired: PrunedModel, healed: PrunedModel
) -> None:
    with chdir(finished.folder):
        measured = lamina.evaluate(
            [*pruned, repaired, healed],
            tasks={"microworld_recall": {"limit": 50}},
            perplexity={
                "corpus_test": {"text": "microworld_corpus", "documents": "0:20", "window": 64}
            },
        )

    keys = ("removed", "repair", "healing", "task", "metric")
    query = f"SELECT {', '.join(keys)}, value, stderr, n_samples FROM benchmarks "
    query += "WHERE calibration = 'none' OR (calibration = 'recall' AND selector = 'accuracy')"
    expected = {row[:5]: row[5:] for row in finished.query(query)}
    compared = 0
    for row in measured.benchmarks.to_pylist():
        values = expected.get(tuple(row[key] for key in keys))
        if values is None:
            assert row["healing"] == "lora"  # whose perplexity the study does not ask for
            continue
        compared += 1
        measured_values = (row["value"], row["stderr"], row["n_samples"])
        assert measured_values == tuple(approximate(value) for value in values)
    assert compared >= 5 * 2 + 4


def test_an_export_loads_as_the_variant(
    finished: Project, healed: PrunedModel, tmp_path: Path
) -> None:
    with chdir(finished.folder):
        form = lamina.export(healed, tmp_path / "export")
        exported, _ = lamina.load(tmp_path / "export", device="cpu")

    assert form == "code"
    token_ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        logits = exported(input_ids=token_ids).logits
        expected_logits = healed.model(input_ids=token_ids).logits
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)
