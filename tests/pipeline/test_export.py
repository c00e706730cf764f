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


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_export_is_the_variant_that_was_benchmarked(finished: Project, variant: str) -> None:
    target = f"results/exports/{variant}"
    planned = finished.run("-n", target).stdout
    assert "rule export_variant" in planned and planned.count("jobid:") == 1
    finished.run(target)
    folder = finished.folder / target
    ids = torch.arange(4, 40)[None]
    # Manifests hold the absolute path of the project's copy, so this needs no working folder.
    named, _ = lamina.load(variant, finished.folder / "results", device="cpu")
    exported = load_folder(folder, "auto", trust_remote_code="/ghost/" in variant)
    with torch.no_grad():
        torch.testing.assert_close(
            exported(input_ids=ids).logits, named(input_ids=ids).logits, atol=1e-5, rtol=1e-5
        )
    card = (folder / "README.md").read_text()
    assert "| microworld_recall | acc |" in card and "license: mit" in card
    assert str(finished.folder) not in card
    assert json.loads((folder / "lamina.json").read_text())["variant"] == variant
    assert "Nothing to be done" in finished.run(target).stdout


@pytest.mark.parametrize(
    ("variant", "said"),
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
    finished: Project, variant: str, said: str
) -> None:
    done = finished.run("-n", f"results/exports/reference/{variant}", check=False)
    assert done.returncode and said in done.stdout and "Missing" not in done.stdout
