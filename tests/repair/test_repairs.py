"""A repair is one module and one class of options: a made-up one goes from its fit to a stock checkpoint."""

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

import lamina
import lamina.models.load
import lamina.repair.methods
from lamina import paths
from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.engine import moments
from lamina.engine.sources import Source
from lamina.evaluation import assembly
from lamina.models.digests import describe_files
from lamina.models.export import modeling_lamina
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options import repairs
from lamina.options.entry import option
from lamina.repair.methods import ghost
from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.stages.changes import IN_LOOP, calibration_weights
from lamina_workflow.stages.export import ExportVariant
from lamina_workflow.stages.repair import FitPatch
from tests.families.test_families import base_folder, plan_of
from tests.given import tiny
from tests.given.scripts import run_in_process

PRUNED = Variant("tiny", "words", "cosine", 1)
SCALED = Variant("tiny", "words", "cosine", 1, "mine")

# Makes the MLP before the removed run louder, by as much as the run made the stream.
MODULE = """
import torch
from lamina.models.structure import layers_of
from lamina.models.boundary import unshare_parameter
from lamina.repair.protocol import Fit
from lamina.engine import moments


def collect(model, sources, boundaries, options, seed):
    return moments.collect_moments(model, sources, boundaries, seed)


def fit(statistics, options):
    both = statistics.fit.plus(statistics.heldout)
    scale = options.strength * both.output_norm() / float(both.xx.trace()) ** 0.5
    tensors = {"scale": torch.tensor([scale])}
    return Fit(tensors, tensors, {"parameters": 0, **statistics.counts()})


def apply(variant, place, tensors):
    unshare_parameter(layers_of(variant)[place.position - 1].mlp.down_proj, "weight").mul_(tensors["scale"])


def as_patch(tensors):
    return None
"""


@pytest.fixture
def scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up repair: a module `lamina.repair.methods.scaled`, and its options."""
    (tmp_path / "scaled.py").write_text(MODULE)
    monkeypatch.setattr(
        lamina.repair.methods, "__path__", [*lamina.repair.methods.__path__, str(tmp_path)]
    )

    class Scaled(repairs.Repair):
        """Louder."""

        method: Literal["scaled"] = "scaled"
        strength: float = option("Factor on top.", 1.0, gt=0)

    yield
    del Scaled, sys.modules["lamina.repair.methods.scaled"], lamina.repair.methods.scaled  # type: ignore[attr-defined]
    gc.collect()
    assert [each.title() for each in repairs.Repair.__subclasses__()].count("scaled") == 0


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A model, a calibration and plans of two sizes, as the workflow leaves them."""
    results, folder = tmp_path / "results", base_folder(tmp_path / "base")
    tiny.model().save_pretrained(folder)
    manifest = {"path": str(folder), "source": "lab/words", "revision": "main", "dtype": "float32"}
    manifest |= {
        "trust_remote_code": False,
        "n_layers": len(layers_of(tiny.model())),
        **describe_files(folder),
    }
    parquet.write_text(paths.manifest("tiny", results), json.dumps(manifest))
    rows = [Row(tuple(tiny.tokens(1, 5 + n % 6, seed=n)[0].tolist()), (7,), 1) for n in range(30)]
    samples = [Sample(number, "text", 0, (row,), str(number)) for number, row in enumerate(rows)]
    calibrations.write_calibration(
        paths.calibration("tiny", "words", results),
        calibrations.build_calibration(samples, tiny.VOCABULARY),
    )
    for units in (["2"], ["2", "4"]):
        parquet.write_text(paths.plan(PRUNED.key, len(units), results), json.dumps(plan_of(units)))
    return results


def fit_job(results: Path, name: str, files: list[str] | None = None, **options: Any) -> FitPatch:
    """The job of both sizes, also on `files` (NAME=FILE)."""
    entry, data = (
        repairs.Repair.from_options(options),
        dict(entry.split("=", 1) for entry in files or []),
    )
    weights = [] if entry.automatic("words") else calibration_weights(entry, "words", IN_LOOP)
    told: dict[str, Any] = {"sizes": [1, 2], "name": name, "repair": entry, "weights": weights}
    plans = [paths.plan(PRUNED.key, size, results) for size in (1, 2)]
    told |= {"own": "words", "seed": 0, "data": data, "plans": plans}
    told |= {
        "output": paths.patch(PRUNED.key, name, results),
        "table": paths.patch_table(PRUNED.key, name, results),
    }
    read = {
        "manifest": paths.manifest("tiny", results),
        "calibration": paths.calibration("tiny", "words", results),
    }
    return FitPatch(**told, **read)


def fitted(
    results: Path, name: str, files: list[str] | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Run the job; the rows of the table."""
    run_in_process(fit_job(results, name, files, **options))
    return parquet.read_table(paths.patch_table(PRUNED.key, name, results)).to_pylist()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=tiny.tokens(), use_cache=False).logits


def test_a_repair_that_folds_goes_from_fit_to_stock_checkpoint(
    results: Path, tmp_path: Path, scaled: None
) -> None:
    rows = fitted(results, "mine", method="scaled", strength=1.5)
    assert [(row["removed"], row["boundary"]) for row in rows] == [
        (1, "2-3"),
        (2, "2-3"),
        (2, "4-5"),
    ]
    assert rows[0]["n_samples"] == 30 and rows[0]["parameters"] == 0
    assert (
        rows[0]["mae_after"] is None
        and rows[0]["ridge"] is None
        and rows[0]["antisymmetric_share"] is None
    )

    base = tiny.model()
    before = logits(base)
    parts = assembly.read_parts(SCALED, results)
    variant = materialise(base, parts.plan, parts.patches)
    assert torch.equal(logits(base), before)
    with torch.no_grad():
        sequences = calibrations.read_calibration(
            paths.calibration("tiny", "words", results)
        ).sequences()
        streams = [tiny.stream(base, torch.tensor([ids]), layers_of(base)) for ids in sequences]
        norms = [torch.cat([stream[place][0] for stream in streams]).norm() for place in (2, 3)]
        expected = tiny.model()
        layers_of(expected)[1].mlp.down_proj.weight.mul_(1.5 * norms[1] / norms[0])
        del layers_of(expected)[2]
    torch.testing.assert_close(logits(variant), logits(expected), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(variant), logits(materialise(base, parts.plan)), atol=1e-2)
    assert not modeling_lamina.describe(variant)["patches"]

    told: dict[str, Any] = {
        "variant": str(SCALED),
        "form": "auto",
        "shard": "5GB",
        "output": str(tmp_path / "export"),
    }
    told |= {
        "manifest": paths.manifest("tiny", results),
        "repairs": ["lamina.repair.methods.scaled"],
    }
    run_in_process(ExportVariant(**told), results.parent)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    torch.testing.assert_close(logits(again), logits(variant), atol=1e-6, rtol=1e-6)
    assert not (tmp_path / "export/modeling_lamina.py").exists()
    assert "folded into the weights" in (tmp_path / "export/README.md").read_text().replace(
        "\n", " "
    )
    named, _ = lamina.load(str(SCALED), results, device="cpu")
    torch.testing.assert_close(logits(named), logits(variant), atol=1e-6, rtol=1e-6)


def test_two_runs_are_repaired_at_their_places_in_the_cut_model(
    results: Path, scaled: None
) -> None:
    fitted(results, "mine", method="scaled")
    parts = assembly.read_parts(Variant("tiny", "words", "cosine", 2, "mine"), results)
    variant, base = materialise(tiny.model(), parts.plan, parts.patches), tiny.model()
    # Layers 0, 1 and 3 are left; those before the runs at 2 and 4 are 1 and 3.
    ratios = [
        float(
            (ours.mlp.down_proj.weight / layers_of(base)[number].mlp.down_proj.weight)
            .detach()
            .mean()
        )
        for ours, number in zip(layers_of(variant), (0, 1, 3), strict=True)
    ]
    scales = [float(fit.tensors["scale"]) for _, fit in sorted(parts.patches.items())]
    assert ratios == pytest.approx([1.0, *scales], rel=1e-5) and 1.0 not in scales


def test_a_repair_is_fitted_on_what_its_data_names(results: Path) -> None:
    rows = [Row(tuple(tiny.tokens(1, 9, seed=100 + n)[0].tolist()), (7,), 1) for n in range(20)]
    samples = [Sample(number, "text", 0, (row,), str(number)) for number, row in enumerate(rows)]
    file = paths.calibration("tiny", "general", results)
    calibrations.write_calibration(file, calibrations.build_calibration(samples, tiny.VOCABULARY))
    own, more = (
        calibrations.read_calibration(paths.calibration("tiny", c, results)).sequences()
        for c in ("words", "general")
    )
    data = {"own": 2.0, "general": 0.5}
    found = fitted(results, "both", [f"general={file}"], method="ghost", data=data)
    assert {row["n_samples"] for row in found} == {50}
    assert found[0]["n_tokens"] == sum(map(len, own)) + sum(map(len, more))
    ((_, statistics),) = moments.collect_moments(
        tiny.model(), [Source(own, 2.0), Source(more, 0.5)], [(2, 3)], 0
    )
    operator = ghost.fit(statistics, ghost.Ghost()).tensors["operator"]
    kept = assembly.read_parts(Variant("tiny", "words", "cosine", 1, "both"), results).patches
    assert kept is not None
    torch.testing.assert_close(kept[2, 3].tensors["operator"], operator, atol=1e-5, rtol=1e-4)
    # As a variant of that calibration itself, whose samples then count once, with both weights.
    alone = fitted(results, "again", method="ghost", data={"own": 1, "words": 0.5})
    assert {row["n_samples"] for row in alone} == {30}
