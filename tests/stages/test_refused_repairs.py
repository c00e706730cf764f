"""A repair that is impossible for a plan of one size is refused for that size alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import paths
from lamina.errors import LaminaError
from lamina.evaluation import assembly
from lamina.options import healings
from lamina.repairs import patch
from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.stages.heal import HealVariant
from lamina_workflow.stages.report import CheckRefusals
from tests.given import tiny
from tests.given.repairs import PRUNED, fit_repair, read_parts, write_plan
from tests.given.repairs import results as results  # a fixture
from tests.given.scripts import run_in_process

# Both train or change the layer before a removed run, and before layer 0 there is none.
METHODS: list[dict[str, Any]] = [{"method": "replaceme"}, {"method": "streamline", "epochs": 1}]


def repaired_variant(removed: int, healing: str = "none") -> Variant:
    return Variant("tiny", "words", "cosine", removed, "mine", healing)


def files_by_variant(results: Path, *variants: Variant) -> dict[Variant, paths.VariantFiles]:
    return {variant: paths.variant_files(variant, results) for variant in variants}


@pytest.fixture(params=METHODS, ids=lambda options: options["method"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A method that cannot repair a run at the start of the model."""
    return dict(request.param)


@pytest.fixture
def fit_rows(results: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Patches of a plan without layers 0 and 2, and of one without layer 2."""
    write_plan(results, 2, ["0", "2"])
    return fit_repair(results, "mine", **options)


@pytest.fixture
def reason(fit_rows: list[dict[str, Any]]) -> str:
    """Why the larger plan is refused."""
    return str(fit_rows[0]["refused"])


def test_only_a_run_that_begins_at_layer_0_is_refused(fit_rows: list[dict[str, Any]]) -> None:
    refused, repaired = fit_rows

    assert (refused["removed"], refused["boundary"]) == (2, "0-1")
    assert "layer 0 has none before it" in refused["refused"]
    assert "protect: [0]" in refused["refused"]
    assert refused["n_samples"] is None
    assert (repaired["removed"], repaired["boundary"]) == (1, "2-3")
    assert repaired["refused"] is None
    assert repaired["n_samples"] == 30


def test_the_patch_of_another_size_is_what_it_is_without_a_refusal(
    results: Path, options: dict[str, Any], fit_rows: list[dict[str, Any]]
) -> None:
    with_refusal = patch.read_patch(paths.patch(PRUNED.key, "mine", results), 1)
    write_plan(results, 2, ["2", "3"])
    fit_repair(results, "alone", **options)
    without_refusal = patch.read_patch(paths.patch(PRUNED.key, "alone", results), 1)

    assert with_refusal.keys() == without_refusal.keys()
    for boundary, fit in without_refusal.items():
        for name, tensor in fit.tensors.items():
            other_tensor = with_refusal[boundary].tensors[name]
            torch.testing.assert_close(other_tensor, tensor, atol=1e-6, rtol=1e-5)


def test_a_refused_variant_is_not_measured(results: Path, reason: str) -> None:
    refused = repaired_variant(2)
    repaired = repaired_variant(1)

    files = files_by_variant(results, refused, repaired)

    models = dict(assembly.materialise_in_turn(tiny.model(), files))

    assert models.keys() == {repaired}


def test_a_refused_variant_is_not_exported(results: Path, reason: str) -> None:
    with pytest.raises(LaminaError, match="removed=2/mine/none") as refusal:
        read_parts(repaired_variant(2), results)

    assert str(refusal.value).endswith(reason)


def test_a_refused_variant_is_not_trained(results: Path, reason: str, tmp_path: Path) -> None:
    training = tmp_path / "adapter/training.parquet"
    job = HealVariant(
        variant=str(repaired_variant(2, "lora")),
        healing=healings.Healing.from_options({"method": "lora"}),
        weights=[("words", 1.0)],
        manifest=paths.manifest("tiny", results),
        calibration=paths.calibration("tiny", "words", results),
        plan=paths.plan(PRUNED.key, 2, results),
        patch=paths.patch(PRUNED.key, "mine", results),
        output=str(training),
    )

    run_in_process(job)

    assert parquet.read_table(training).num_rows == 0


def test_a_run_ends_with_the_refusals(results: Path, reason: str, tmp_path: Path) -> None:
    parquet.write_table(tmp_path / "plans.parquet", parquet.from_rows("plans", []))
    job = CheckRefusals(
        plans=str(tmp_path / "plans.parquet"),
        patches=paths.patch_table(PRUNED.key, "mine", results),
        output=str(tmp_path / "refusals.txt"),
    )

    with pytest.raises(SystemExit) as ended:
        run_in_process(job)

    assert f"tiny/words/cosine/removed=2/mine: {reason}" in str(ended.value)


def test_a_selector_all_of_whose_sizes_are_refused_leaves_an_empty_patch(results: Path) -> None:
    write_plan(results, 1, ["0"])
    write_plan(results, 2, ["0", "1"])

    rows = fit_repair(results, "mine", method="replaceme")

    assert [row["boundary"] for row in rows] == ["0-1", "0-2"]
    assert all(row["refused"] for row in rows)
    files = files_by_variant(results, repaired_variant(1), repaired_variant(2))
    assert assembly.read_plans(files) == {}


def test_a_method_that_repairs_any_run_is_not_refused(results: Path) -> None:
    write_plan(results, 1, ["0"])

    rows = fit_repair(results, "mine", method="ghost")

    assert [row["refused"] for row in rows] == [None] * len(rows)
    assert read_parts(repaired_variant(1), results).patches
