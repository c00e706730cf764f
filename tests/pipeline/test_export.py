"""`make export` writes a checkpoint from a finished run, and measures nothing for it."""

import json
from dataclasses import dataclass

import pytest
import torch

import lamina
from lamina.models.load import load_folder
from tests.pipeline.project import Project, parse_jobs

VARIANTS = (
    "reference/recall/accuracy/removed=2/ghost/lora",
    pytest.param("reference/recall/accuracy/removed=2/none/lora", marks=pytest.mark.slow),
)


@dataclass(frozen=True)
class Export:
    """The name of a variant, and what its export printed."""

    variant: str
    output: str


@pytest.fixture(scope="module", params=VARIANTS)
def export(request: pytest.FixtureRequest, measured: Project) -> Export:
    """A variant after its export."""
    run = measured.run(f"results/exports/{request.param}")
    return Export(request.param, run.stdout)


def test_an_export_is_the_variant_that_was_benchmarked(measured: Project, export: Export) -> None:
    results = measured.folder / "results"
    has_code = "/ghost/" in export.variant

    exported = load_folder(results / "exports" / export.variant, "auto", trust_remote_code=has_code)
    # Manifests hold the absolute path of the project's copy, so this needs no working folder.
    loaded, _ = lamina.load(export.variant, results, device="cpu")

    token_ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        logits = exported(input_ids=token_ids).logits
        expected_logits = loaded(input_ids=token_ids).logits
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)


def test_an_export_says_what_it_is(measured: Project, export: Export) -> None:
    folder = measured.folder / "results/exports" / export.variant

    facts = json.loads((folder / "lamina.json").read_text())
    card = (folder / "README.md").read_text()
    assert facts["variant"] == export.variant
    assert "| microworld_recall | acc |" in card
    assert "license: mit" in card
    assert str(measured.folder) not in card


def test_an_export_is_one_job_and_is_made_once(measured: Project, export: Export) -> None:
    assert [job.rule for job in parse_jobs(export.output)] == ["export_variant"]
    second_run = measured.run(f"results/exports/{export.variant}")
    assert "Nothing to be done" in second_run.stdout


def test_a_run_that_ends_well_reports_no_failure(export: Export) -> None:
    assert "The first failure" not in export.output


def test_a_variant_that_nothing_makes_is_refused_by_name(measured: Project) -> None:
    """Other wrong names: tests/stages/test_exports.py."""
    variant = "recal/accuracy/removed=2/none/none"

    run = measured.run("-n", f"results/exports/reference/{variant}", check=False)

    assert run.returncode != 0
    assert "'recal' is not defined under `calibrations`. Did you mean" in run.stdout
    assert "Missing" not in run.stdout
