"""A variant that cannot be made is refused with its unknown field and the nearest valid name."""

import pytest

from lamina.errors import LaminaError
from lamina.variant import Variant
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages import export
from tests.given.configurations import minimal_config, write_model_and_data

VARIANT = Variant("small", "recall", "cosine", 2)


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    raw = minimal_config()
    raw["selectors"]["pairs"] = {"metric": "accuracy", "strategy": "pairwise"}
    search = {"selectors": ["pairs"], "removed": [2, 5]}
    raw["studies"]["search"] = raw["studies"]["prune"] | search
    return load_configuration(raw, write_model_and_data(tmp_path_factory.mktemp("exports")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smal/recall/accuracy/removed=1/ghost/lora",
            "'smal' is not defined under `models`. Did you mean 'small'?",
        ),
        (
            "small/recal/accuracy/removed=1/none/none",
            "'recal' is not defined under `calibrations`.*'recall'",
        ),
        (
            "small/recall/acuracy/removed=1/none/none",
            "'acuracy' is not defined under `selectors`.*'accuracy'",
        ),
        (
            "small/recall/accuracy/removed=1/gost/none",
            "'gost' is not defined under `repairs`.*'ghost'",
        ),
        (
            "small/recall/accuracy/removed=1/none/lra",
            "'lra' is not defined under `healings`.*'lora'",
        ),
        (
            "small/recall/accuracy/removed=1/xyz/none",
            "'xyz' is not defined.*Choose from none, ghost",
        ),
        ("small/none/none/removed=0/none/none", "is the base model, which is already a checkpoint"),
        (
            "small/recall/accuracy/removed=0/none/none",
            "0 is not a size of selector 'accuracy', which only removes. Write at least 1",
        ),
        ("small/recall/accuracy/removed=-2/none/none", "-2 is not a size of selector 'accuracy'"),
        (
            "small/recall/accuracy/removed=8/none/none",
            "8 is more than.*from 'small', which has 8 layers.*Write at most 7",
        ),
        ("small/recall/cosine/removed=7/none/none", "Write at most 6"),
        (
            "small/recall/accuracy/removed=5/ghost/none",
            "no study fits repair 'ghost' to removed=5.*write removed=2",
        ),
        (
            "small/recall/pairs/removed=4/none/none",
            "no study searches 'pairs' for 4 units.*or write removed=5",
        ),
        (
            "small/recall/cosine/removed=1/ghost/none",
            "no study fits repair 'ghost' to removed=1 .*of a study.$",
        ),
        ("small/recall/cosine/removed=1/none/lora", "no study heals it.*Add 'lora' to `healings`"),
        ("small/recall/accuracy/removd=1/none/none", "its part 'removd=1' is not removed=n"),
        ("small/recall/accuracy/removed=1/none", "it has 5 parts, not 6"),
        ("small/recall//removed=1/none/none", "its selector is empty"),
    ],
)
def test_a_variant_that_cannot_be_made_is_refused_with_the_nearest_name(
    configuration: Configuration, name: str, message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        export.check_variant(configuration, Variant.parse(name))


@pytest.mark.parametrize("removed", [1, 2])
@pytest.mark.parametrize("repair", ["none", "ghost"])
@pytest.mark.parametrize("healing", ["none", "lora"])
def test_a_variant_of_a_study_is_exported(
    configuration: Configuration, removed: int, repair: str, healing: str
) -> None:
    variant = Variant("small", "recall", "accuracy", removed, repair, healing)

    export.check_variant(configuration, variant)


def test_a_plan_of_no_study_is_made_for_an_export(configuration: Configuration) -> None:
    export.check_variant(configuration, Variant("small", "recall", "cosine", 6))


def test_exports_are_told_from_other_arguments_of_snakemake() -> None:
    arguments = [
        "snakemake",
        "--cores",
        "2",
        "--",
        "results/exports/a/b/c/removed=1/none/none",
        "results/report.html",
    ]

    folder = "results/exports/"
    assert export.requested_variants(arguments, folder) == ["a/b/c/removed=1/none/none"]


def test_a_size_of_shards_is_allowed(configuration: Configuration) -> None:
    environment = {"LAMINA_EXPORT_FORM": "", "LAMINA_EXPORT_SHARD": "2GB"}

    export.check_form(environment, configuration, VARIANT)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LAMINA_EXPORT_FORM": "codee"}, "no export form 'codee'. Did you mean 'code'"),
        ({"LAMINA_EXPORT_SHARD": "2XB"}, "'2XB' is not a file size.* such as 2GB"),
        (
            {"LAMINA_EXPORT_FORM": "gguf"},  # of a model that is a checkpoint
            "not a GGUF file. Leave --form out, and run llama.cpp's convert_hf_to_gguf.py",
        ),
    ],
)
def test_a_form_or_size_that_does_not_exist_is_refused(
    configuration: Configuration, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        export.check_form(environment, configuration, VARIANT)
