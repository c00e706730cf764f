"""A variant that is asked for and cannot be made: the unknown part and the nearest valid one are named."""

import pytest

from lamina.errors import LaminaError
from lamina.variant import Variant
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages import export
from tests.given.configurations import minimal_config, write_model_and_data


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    raw = minimal_config()
    raw["selectors"]["evolved"] = {"metric": "accuracy", "strategy": "evolutionary"}
    raw["studies"]["search"] = raw["studies"]["prune"] | {
        "selectors": ["evolved"],
        "removed": [2, 5],
    }
    return load_configuration(raw, write_model_and_data(tmp_path_factory.mktemp("exports")))


@pytest.mark.parametrize(
    ("variant", "said"),
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
        ("small/recall/accuracy/removed=0/none/none", "removed=0 is the base model"),
        (
            "small/recall/accuracy/removed=8/none/none",
            "at most 7 of the 8 layers of 'small', not 8. Write removed=7",
        ),
        ("small/recall/cosine/removed=7/none/none", "at most 6 of the 8 layers"),
        (
            "small/recall/accuracy/removed=5/ghost/none",
            "no study fits repair 'ghost' to removed=5.*write removed=2",
        ),
        (
            "small/recall/evolved/removed=4/none/none",
            "no study searches 'evolved' for 4 units.*or write removed=5",
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
def test_what_is_unknown_is_named_with_the_nearest(
    config: Configuration, variant: str, said: str
) -> None:
    with pytest.raises(LaminaError, match=said):
        export.check_variant(config, Variant.parse(variant))


@pytest.mark.parametrize("size", [1, 2])
def test_variants_that_can_be_made_pass(config: Configuration, size: int) -> None:
    for repair in ("none", "ghost"):
        for healing in ("none", "lora"):
            export.check_variant(
                config, Variant("small", "recall", "accuracy", size, repair, healing)
            )
    export.check_variant(
        config, Variant("small", "recall", "cosine", 6)
    )  # of no study, made on demand


def test_targets_are_told_from_other_arguments() -> None:
    given = [
        "snakemake",
        "--cores",
        "2",
        "--",
        "results/exports/a/b/c/removed=1/none/none",
        "results/report.html",
    ]
    assert export.requested_variants(given) == ["a/b/c/removed=1/none/none"]


VARIANT = Variant("small", "recall", "cosine", 2)


def test_a_form_or_size_that_is_none_is_refused_before_anything_is_taken_away(
    config: Configuration,
) -> None:
    export.check_form({"LAMINA_EXPORT_FORM": "", "LAMINA_EXPORT_SHARD": "2GB"}, config, VARIANT)
    with pytest.raises(LaminaError, match="FORM=codee: .* Did you mean 'code'"):
        export.check_form({"LAMINA_EXPORT_FORM": "codee"}, config, VARIANT)
    with pytest.raises(LaminaError, match="SHARD=2XB is no size.* SHARD=2GB"):
        export.check_form({"LAMINA_EXPORT_SHARD": "2XB"}, config, VARIANT)


def test_a_checkpoint_is_no_gguf_file(config: Configuration) -> None:
    with pytest.raises(
        LaminaError, match="no GGUF file. Leave FORM out, and run llama.cpp's convert_hf_to_gguf.py"
    ):
        export.check_form({"LAMINA_EXPORT_FORM": "gguf"}, config, VARIANT)
