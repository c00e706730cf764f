"""A repair that is impossible for a plan of one size is refused for that size alone, with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import paths
from lamina.errors import LaminaError
from lamina.evaluation import assembly
from lamina.options import healings
from lamina.repair import patch
from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.stages.heal import HealVariant
from lamina_workflow.stages.report import CheckRefusals
from tests.given import tiny
from tests.given.repairs import PRUNED, fit_repair, plan_of
from tests.given.repairs import results as results  # a fixture
from tests.given.scripts import run_in_process

METHODS: list[dict[str, Any]] = [{"method": "replaceme"}, {"method": "streamline", "epochs": 1}]


def plan(results: Path, size: int, units: list[str]) -> None:
    keys = {
        "model": "tiny",
        "calibration": "words",
        "selector": "cosine",
        "removed": size,
        "refused": None,
    }
    parquet.write_text(paths.plan(PRUNED.key, size, results), json.dumps(plan_of(units) | keys))


def variant(size: int, healing: str = "none") -> Variant:
    return Variant("tiny", "words", "cosine", size, "mine", healing)


@pytest.mark.parametrize("options", METHODS, ids=lambda options: options["method"])
def test_only_runs_that_begin_at_layer_0_are_refused(
    results: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    plan(results, 2, ["0", "2"])
    rows = fit_repair(results, "mine", **options)
    told = [(row["removed"], row["boundary"], row["refused"] is None) for row in rows]
    assert told == [(2, "0-1", False), (1, "2-3", True)]
    reason = rows[0]["refused"]
    assert "before layer 0 there is none" in reason and "protect: [0]" in reason
    assert rows[0]["n_samples"] is None and rows[1]["n_samples"] == 30

    # The other size is what it is without the refused one.
    found = patch.read_patch(paths.patch(PRUNED.key, "mine", results), 1)
    plan(results, 2, ["2", "3"])
    fit_repair(results, "alone", **options)
    alone = patch.read_patch(paths.patch(PRUNED.key, "alone", results), 1)
    for boundary, fit in alone.items():
        for name, tensor in fit.tensors.items():
            torch.testing.assert_close(found[boundary].tensors[name], tensor, atol=1e-6, rtol=1e-5)

    # Nothing is measured, trained or exported of the refused one.
    assert (
        assembly.find_refusal(variant(1), results) is None
        and assembly.find_refusal(variant(2), results) == reason
    )
    turn = [
        each
        for each, _ in assembly.materialise_in_turn(tiny.model(), [variant(2), variant(1)], results)
    ]
    assert turn == [variant(1)]
    with pytest.raises(LaminaError, match="removed=2/mine/none.*before layer 0"):
        assembly.read_parts(variant(2), results)
    read = {
        "manifest": paths.manifest("tiny", results),
        "calibration": paths.calibration("tiny", "words", results),
    }
    read |= {
        "plan": paths.plan(PRUNED.key, 2, results),
        "patch": paths.patch(PRUNED.key, "mine", results),
    }
    healing, output = (
        healings.Healing.from_options({"method": "lora"}),
        str(tmp_path / "adapter/training.parquet"),
    )
    run_in_process(
        HealVariant(
            variant=str(variant(2, "lora")),
            healing=healing,
            weights=[("words", 1.0)],
            output=output,
            **read,
        )
    )
    assert parquet.read_table(tmp_path / "adapter/training.parquet").num_rows == 0

    # The run ends with it.
    parquet.write_table(tmp_path / "plans.parquet", parquet.from_rows("plans", []))
    read = {
        "plans": str(tmp_path / "plans.parquet"),
        "patches": paths.patch_table(PRUNED.key, "mine", results),
    }
    with pytest.raises(SystemExit) as ended:
        run_in_process(CheckRefusals(**read, output=str(tmp_path / "refusals.txt")))
    assert f"tiny/words/cosine/removed=2/mine: {reason}" in str(ended.value)


def test_a_selector_all_of_whose_sizes_are_refused_leaves_an_empty_patch(results: Path) -> None:
    plan(results, 1, ["0"])
    plan(results, 2, ["0", "1"])
    rows = fit_repair(results, "mine", method="replaceme")
    assert [row["boundary"] for row in rows] == ["0-1", "0-2"] and all(
        row["refused"] for row in rows
    )
    assert all(assembly.find_refusal(variant(size), results) for size in (1, 2))


def test_methods_that_repair_any_run_are_not_refused(results: Path) -> None:
    plan(results, 1, ["0"])
    assert all(row["refused"] is None for row in fit_repair(results, "mine", method="ghost"))
    assert assembly.find_refusal(variant(1), results) is None
