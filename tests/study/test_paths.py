"""Where files stand."""

import re
from pathlib import Path

import pytest

from lamina import paths
from lamina.errors import LaminaError
from lamina.variant import Variant

HEALED = Variant("m", "c", "s", 3, "ghost", "lora")


def test_a_variant_is_made_of_its_plan_its_patch_and_its_adapter() -> None:
    files = paths.variant_files(HEALED)
    assert files.plan == "results/plans/m/c/s/removed=3.json"
    assert files.patch == "results/patches/m/c/s/ghost.safetensors"
    assert files.adapter == "results/adapters/m/c/s/removed=3/ghost/lora"


def test_what_a_variant_lacks_has_no_file() -> None:
    files = paths.variant_files(Variant("m", "c", "s", 3))
    assert (files.plan, files.patch, files.adapter) == (
        "results/plans/m/c/s/removed=3.json",
        None,
        None,
    )
    assert paths.variant_files(Variant.base("m")) == paths.VariantFiles(None, None, None)


def test_an_export_stands_under_the_variants_own_name() -> None:
    assert paths.export(HEALED) == f"results/exports/{HEALED}"
    assert Variant.parse(paths.export(HEALED).removeprefix("results/exports/")) == HEALED


def test_wildcards_allow_names_of_the_configuration_and_no_others() -> None:
    pattern = re.compile(paths.any_of(["a.b", "c+"], r"base/\w+"))
    assert [bool(pattern.fullmatch(text)) for text in ("a.b", "axb", "c+", "cc", "base/x")] == [
        *(True, False, True, False, True)
    ]
    assert not re.fullmatch(paths.any_of([]), "")


def test_a_study_is_called_as_its_configuration_files_are(tmp_path: Path) -> None:
    assert paths.study_name(["config/mine.yaml", "more.yaml"], tmp_path) == "mine+more"
    (tmp_path / "studies/Mine").mkdir(parents=True)
    assert paths.study_name(["Mine.yaml"], tmp_path) == "Mine"
    with pytest.raises(
        LaminaError, match="already holds a study 'Mine'.*'mine' for the same.*Rename"
    ):
        paths.study_name(["mine.yaml"], tmp_path)
