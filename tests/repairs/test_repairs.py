"""A repair is one module and one class of options: a made-up one goes from its fit to an export.

The expected model is cut and scaled by hand.
"""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import lamina
import lamina.repairs.methods
from lamina import paths
from lamina.data.calibrations import read_calibration
from lamina.engine import moments
from lamina.engine.sources import Source
from lamina.models.export import modeling_lamina
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options import repairs
from lamina.options.entry import option
from lamina.repairs.methods import ghost
from lamina.variant import Variant
from lamina_workflow.stages.export import ExportVariant
from tests.given import tiny
from tests.given.repairs import fit_repair, logits_of, read_parts, word_samples, write_samples
from tests.given.scripts import run_in_process

MODULE = '''
"""Scales the MLP before the removed run by as much as the run scaled the stream."""

import torch
from lamina.models.structure import layers_of
from lamina.models.boundary import unshare_parameter
from lamina.repairs.protocol import Fit
from lamina.engine import moments


def collect(model, sources, boundaries, options, seed):
    return moments.collect_moments(model, sources, boundaries, seed)


def fit(statistics, options):
    sums = statistics.fit.plus(statistics.heldout)
    input_norm = float(sums.xx.trace()) ** 0.5
    scale = options.strength * sums.output_norm() / input_norm
    tensors = {"scale": torch.tensor([scale])}
    return Fit(tensors, tensors, {"parameters": 0, **statistics.counts()})


def apply(variant, place, tensors):
    mlp = layers_of(variant)[place.position - 1].mlp
    unshare_parameter(mlp.down_proj, "weight").mul_(tensors["scale"])


def as_patch(tensors):
    return None
'''


def variant_of(size: int, repair: str) -> Variant:
    return Variant("tiny", "words", "cosine", size, repair)


@pytest.fixture
def scaling_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Adds a method: module `lamina.repairs.methods.scaled` and its class of options."""
    (tmp_path / "scaled.py").write_text(MODULE)
    package_path = [*lamina.repairs.methods.__path__, str(tmp_path)]
    monkeypatch.setattr(lamina.repairs.methods, "__path__", package_path)

    class Scaled(repairs.Repair):
        """Scales an MLP."""

        method: Literal["scaled"] = "scaled"
        strength: float = option("Factor on top.", 1.0, gt=0)

    yield

    del Scaled
    del sys.modules["lamina.repairs.methods.scaled"]
    del lamina.repairs.methods.scaled  # type: ignore[attr-defined]
    gc.collect()
    assert "scaled" not in [kind.title() for kind in repairs.Repair.__subclasses__()]


@pytest.fixture
def fitted_rows(results: Path, scaling_repair: None) -> list[dict[str, Any]]:
    """The rows of the table, after the made-up repair was fitted."""
    return fit_repair(results, "mine", method="scaled", strength=1.5)


@torch.no_grad()
def scaled_by_hand(results: Path) -> PreTrainedModel:
    """The model without layer 2, whose MLP before it is scaled as the module says."""
    sequences = read_calibration(paths.calibration("tiny", "words", results)).sequences()
    model = tiny.model()
    streams_by_text = [
        tiny.stream(model, torch.tensor([sequence]), layers_of(model)) for sequence in sequences
    ]
    input_norm = torch.cat([streams[2] for streams in streams_by_text], dim=1).norm()
    output_norm = torch.cat([streams[3] for streams in streams_by_text], dim=1).norm()
    layers_of(model)[1].mlp.down_proj.weight.mul_(1.5 * output_norm / input_norm)
    del layers_of(model)[2]
    return model


def test_a_made_up_repair_fills_its_table(fitted_rows: list[dict[str, Any]]) -> None:
    sizes_and_runs = [(row["removed"], row["boundary"]) for row in fitted_rows]
    assert sizes_and_runs == [(1, "2-3"), (2, "2-3"), (2, "4-5")]
    for row in fitted_rows:
        assert row["n_samples"] == 30
        assert row["parameters"] == 0
        # These are of linear maps of the stream.
        assert row["mae_after"] is row["ridge"] is row["antisymmetric_share"] is None


def test_a_made_up_repair_makes_the_model_that_is_made_by_hand(
    results: Path, fitted_rows: list[dict[str, Any]]
) -> None:
    base_model = tiny.model()
    base_logits = logits_of(base_model)
    parts = read_parts(variant_of(1, "mine"), results)

    variant = materialise(base_model, parts.plan, parts.patches)

    assert torch.equal(logits_of(base_model), base_logits), "the base model is not touched"
    expected = logits_of(scaled_by_hand(results))
    bare = materialise(base_model, parts.plan)
    torch.testing.assert_close(logits_of(variant), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits_of(variant), logits_of(bare), atol=1e-2)
    loaded, _ = lamina.load(str(variant_of(1, "mine")), results, device="cpu")
    torch.testing.assert_close(logits_of(loaded), logits_of(variant), atol=1e-6, rtol=1e-6)


def test_a_made_up_repair_that_folds_is_exported_as_a_stock_checkpoint(
    results: Path, tmp_path: Path, fitted_rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path / "export"
    fields: dict[str, Any] = {
        "variant": str(variant_of(1, "mine")),
        "form": "auto",
        "shard": "5GB",
        "output": str(folder),
        "manifest": paths.manifest("tiny", results),
        "plan": paths.plan(variant_of(1, "mine").key, 1, results),
        "patch": paths.patch(variant_of(1, "mine").key, "mine", results),
        "repairs": ["lamina.repairs.methods.scaled"],
    }

    run_in_process(ExportVariant(**fields), results.parent)

    parts = read_parts(variant_of(1, "mine"), results)
    variant = materialise(tiny.model(), parts.plan, parts.patches)
    assert not modeling_lamina.describe(variant)["patches"]
    reloaded = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits_of(reloaded), logits_of(variant), atol=1e-6, rtol=1e-6)
    assert not (folder / "modeling_lamina.py").exists()
    card_in_one_line = (folder / "README.md").read_text().replace("\n", " ")
    assert "folded into the weights" in card_in_one_line


def test_two_runs_are_repaired_at_their_positions_in_the_cut_model(
    results: Path, scaling_repair: None
) -> None:
    """Layers 0, 1 and 3 are left; those before the runs at 2 and 4 are 1 and 3."""
    fit_repair(results, "mine", method="scaled")
    parts = read_parts(variant_of(2, "mine"), results)
    base_model = tiny.model()

    variant = materialise(base_model, parts.plan, parts.patches)

    scales: list[float] = []
    for layer, base_index in zip(layers_of(variant), (0, 1, 3), strict=True):
        base_weight = layers_of(base_model)[base_index].mlp.down_proj.weight
        scales.append(float((layer.mlp.down_proj.weight / base_weight).mean()))
    fitted_scales = [float(fit.tensors["scale"]) for _, fit in sorted(parts.patches.items())]
    assert 1.0 not in fitted_scales
    assert scales == pytest.approx([1.0, *fitted_scales], rel=1e-5)


def test_a_repair_is_fitted_on_what_its_data_names(results: Path) -> None:
    general_samples = word_samples(20, (9,), first_seed=100)
    general_file = write_samples(results, "general", general_samples)

    rows = fit_repair(
        results,
        "both",
        {"general": general_file},
        method="ghost",
        data={"own": 2.0, "general": 0.5},
    )

    own_sequences = read_calibration(paths.calibration("tiny", "words", results)).sequences()
    general_sequences = read_calibration(general_file).sequences()
    all_sequences = [*own_sequences, *general_sequences]
    assert {row["n_samples"] for row in rows} == {50}
    assert rows[0]["n_tokens"] == sum(len(sequence) for sequence in all_sequences)
    sources = [Source(own_sequences, 2.0), Source(general_sequences, 0.5)]
    ((_, statistics),) = moments.collect_moments(tiny.model(), sources, [(2, 3)], 0)
    expected = ghost.fit(statistics, ghost.Ghost()).tensors["operator"]
    patches = read_parts(variant_of(1, "both"), results).patches
    assert patches is not None
    torch.testing.assert_close(patches[2, 3].tensors["operator"], expected, atol=1e-5, rtol=1e-4)


def test_a_variants_own_calibration_that_its_data_names_again_counts_once(results: Path) -> None:
    """With both weights."""
    rows = fit_repair(results, "mine", method="ghost", data={"own": 1, "words": 0.5})

    assert {row["n_samples"] for row in rows} == {30}
