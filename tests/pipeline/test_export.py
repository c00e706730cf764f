"""`make export` writes a checkpoint from a finished run, and measures nothing for it."""

import json

import pytest
import torch

import lamina
from lamina.models.load import load_folder
from tests.pipeline.project import Project

VARIANTS = (
    "reference/recall/accuracy/removed=2/ghost/lora",
    pytest.param("reference/recall/accuracy/removed=2/none/lora", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module", params=VARIANTS)
def exported_variant(request: pytest.FixtureRequest, finished: Project) -> str:
    """The name of a variant after its export."""
    variant: str = request.param
    finished.run(f"results/exports/{variant}")
    return variant


def test_an_export_is_the_variant_that_was_benchmarked(
    finished: Project, exported_variant: str
) -> None:
    results = finished.folder / "results"
    has_code = "/ghost/" in exported_variant

    exported = load_folder(
        results / "exports" / exported_variant, "auto", trust_remote_code=has_code
    )
    # Manifests hold the absolute path of the project's copy, so this needs no working folder.
    loaded, _ = lamina.load(exported_variant, results, device="cpu")

    token_ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        logits = exported(input_ids=token_ids).logits
        expected_logits = loaded(input_ids=token_ids).logits
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)


def test_an_export_says_what_it_is(finished: Project, exported_variant: str) -> None:
    folder = finished.folder / "results/exports" / exported_variant

    facts = json.loads((folder / "lamina.json").read_text())
    card = (folder / "README.md").read_text()
    assert facts["variant"] == exported_variant
    assert "| microworld_recall | acc |" in card
    assert "license: mit" in card
    assert str(finished.folder) not in card


def test_an_export_is_one_job(finished: Project) -> None:
    target = "results/exports/reference/recall/accuracy/removed=1/none/none"

    planned = finished.run("-n", target).stdout
    finished.run(target)

    assert "rule export_variant" in planned
    assert planned.count("jobid:") == 1
    assert "Nothing to be done" in finished.run(target).stdout


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("recall/accuracy/removed=3/ghost/none", "no study fits repair 'ghost' to removed=3"),
        (
            "recal/accuracy/removed=2/none/none",
            "'recal' is not defined under `calibrations`. Did you mean",
        ),
        (
            "recall/accuracy/2/none/none",
            "is not a variant: its part '2' is not removed=n, with a number for n. Write",
        ),
    ],
)
def test_a_variant_that_nothing_makes_is_refused_by_name(
    finished: Project, variant: str, message: str
) -> None:
    run = finished.run("-n", f"results/exports/reference/{variant}", check=False)
    assert run.returncode != 0
    assert message in run.stdout
    assert "Missing" not in run.stdout
