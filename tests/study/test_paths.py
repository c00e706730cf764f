"""Paths of the files of a variant, an export and a study, spelled out."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lamina import paths
from lamina.errors import LaminaError
from lamina.variant import Variant

HEALED = Variant("m", "c", "s", 3, "ghost", "lora")


def test_a_variant_has_a_plan_a_patch_and_an_adapter() -> None:
    files = paths.variant_files(HEALED)

    assert files.plan == "results/plans/m/c/s/removed=3.json"
    assert files.patch == "results/patches/m/c/s/ghost.safetensors"
    assert files.adapter == "results/adapters/m/c/s/removed=3/ghost/lora"


def test_a_variant_without_repair_and_healing_has_its_plan_alone() -> None:
    files = paths.variant_files(Variant("m", "c", "s", 3))

    assert files == paths.VariantFiles("results/plans/m/c/s/removed=3.json", None, None)


def test_the_base_model_has_no_files() -> None:
    assert paths.variant_files(Variant.base("m")) == paths.VariantFiles(None, None, None)


def test_an_export_is_in_a_folder_with_the_variants_name() -> None:
    assert paths.export(HEALED) == "results/exports/m/c/s/removed=3/ghost/lora"


@pytest.mark.parametrize("removed", [3, 0, -2])
def test_the_name_of_a_variant_is_read_as_it_is_written(removed: int) -> None:
    variant = replace(HEALED, removed=removed)

    assert Variant.parse(str(variant)) == variant


def test_a_plan_of_size_0_is_not_the_base_model() -> None:
    exchanged = Variant("m", "c", "s", 0)

    assert Variant.base("m").is_base
    assert not exchanged.is_base
    assert paths.variant_files(exchanged).plan == "results/plans/m/c/s/removed=0.json"


@pytest.mark.parametrize(
    ("name", "matches"),
    [("a.b", True), ("axb", False), ("c+", True), ("cc", False), ("base/x", True)],
)
def test_wildcards_match_names_of_the_configuration_and_no_others(name: str, matches: bool) -> None:
    pattern = paths.any_of(["a.b", "c+"], r"base/\w+")

    assert (re.fullmatch(pattern, name) is not None) == matches


def test_a_wildcard_without_names_matches_nothing() -> None:
    assert not re.fullmatch(paths.any_of([]), "")


def test_a_study_has_the_names_of_its_configuration_files(tmp_path: Path) -> None:
    assert paths.study_name(["config/mine.yaml", "more.yaml"], tmp_path) == "mine+more"


def test_a_study_that_was_run_before_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "studies/Mine").mkdir(parents=True)

    assert paths.study_name(["Mine.yaml"], tmp_path) == "Mine"


def test_a_study_whose_name_differs_by_case_from_an_earlier_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "studies/Mine").mkdir(parents=True)

    with pytest.raises(
        LaminaError, match="already holds a study 'Mine'.* same name to DuckDB as 'mine'.*Rename"
    ):
        paths.study_name(["mine.yaml"], tmp_path)
