"""What tests of repairs share: texts of many lengths, a linear layer, and the workflow's fits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina import paths
from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.evaluation import assembly
from lamina.models.digests import describe_files
from lamina.models.structure import layers_of
from lamina.options.repairs import IN_LOOP, Repair
from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.stages.repair import FitPatch
from tests.families.test_families import base_folder, plan_of
from tests.given import tiny
from tests.given.scripts import run_in_process

TEXT_LENGTHS = (5, 9, 14, 7, 11, 3, 12, 8, 10, 6, 13, 9, 4, 12, 15, 8, 7, 11, 10, 9)
PRUNED = Variant("tiny", "words", "cosine", 1)
"""The smaller of the two variants in `results`."""


def draw_texts(seed: int = 0) -> list[list[int]]:
    """Token sequences of different lengths, so that every batch is padded."""
    generator = torch.Generator().manual_seed(seed)
    texts: list[list[int]] = []
    for length in TEXT_LENGTHS:
        tokens = torch.randint(4, tiny.VOCABULARY, (length,), generator=generator)
        texts.append(tokens.tolist())
    return texts


def linear_layer_model() -> PreTrainedModel:
    """A model whose layer 2 adds a linear function of its input."""
    model = tiny.model()
    layer = layers_of(model)[2]
    torch.manual_seed(3)
    layer.linear = nn.Linear(32, 32, bias=False)

    def forward(hidden_states: torch.Tensor, **options: Any) -> torch.Tensor:
        return hidden_states + layer.linear(hidden_states)

    layer.forward = forward  # type: ignore[method-assign]
    return model


def word_samples(count: int, lengths: tuple[int, ...], first_seed: int = 0) -> list[Sample]:
    """Texts of random tokens whose contexts have these lengths in turn."""
    samples: list[Sample] = []
    for index in range(count):
        length = lengths[index % len(lengths)]
        context = tiny.tokens(1, length, seed=first_seed + index)[0].tolist()
        row = Row(tuple(context), (7,), 1)
        samples.append(Sample(index, "text", 0, (row,), str(index)))
    return samples


def write_samples(results: Path, name: str, samples: list[Sample]) -> str:
    """Write samples as a calibration of the model; returns its file."""
    file = paths.calibration("tiny", name, results)
    calibrations.write_calibration(file, calibrations.build_calibration(samples, tiny.VOCABULARY))
    return file


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A model, a calibration and plans of two sizes, as the workflow leaves them."""
    results = tmp_path / "results"
    folder = base_folder(tmp_path / "base")
    tiny.model().save_pretrained(folder)
    manifest = {
        "path": str(folder),
        "source": "lab/words",
        "revision": "main",
        "dtype": "float32",
        "trust_remote_code": False,
        "n_layers": 5,
        **describe_files(folder),
    }
    parquet.write_text(paths.manifest("tiny", results), json.dumps(manifest))
    write_samples(results, "words", word_samples(30, (5, 6, 7, 8, 9, 10)))
    for units in (["2"], ["2", "4"]):
        plan_file = paths.plan(PRUNED.key, len(units), results)
        parquet.write_text(plan_file, json.dumps(plan_of(units)))
    return results


def fit_job(
    results: Path, name: str, other_files: dict[str, str] | None = None, **options: Any
) -> FitPatch:
    """The job that fits a repair for both plans.

    other_files: The files of other calibrations that the repair is fitted on.
    options: Those of the repair.
    """
    repair = Repair.from_options(options)
    weights: list[tuple[str, float]] = []
    if not repair.automatic("words"):
        weights = repair.ordered_weights("words", IN_LOOP)
    fields: dict[str, Any] = {
        "sizes": [1, 2],
        "name": name,
        "repair": repair,
        "weights": weights,
        "own": "words",
        "seed": 0,
        "data": other_files or {},
        "plans": [paths.plan(PRUNED.key, size, results) for size in (1, 2)],
        "manifest": paths.manifest("tiny", results),
        "calibration": paths.calibration("tiny", "words", results),
        "output": paths.patch(PRUNED.key, name, results),
        "table": paths.patch_table(PRUNED.key, name, results),
    }
    return FitPatch(**fields)


def fit_repair(
    results: Path, name: str, other_files: dict[str, str] | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Run the job that fits a repair; returns the rows of its table."""
    run_in_process(fit_job(results, name, other_files, **options))
    rows: list[dict[str, Any]] = parquet.read_table(
        paths.patch_table(PRUNED.key, name, results)
    ).to_pylist()
    return rows


def read_parts(variant: Variant, results: Path) -> assembly.Parts:
    """What a variant is made of, under a folder of results."""
    return assembly.read_parts(variant, paths.variant_files(variant, results))


@torch.no_grad()
def logits_of(model: nn.Module) -> torch.Tensor:
    """The model's logits for three lines of random tokens."""
    logits: torch.Tensor = model(input_ids=tiny.tokens(), use_cache=False).logits
    return logits


def write_plan(results: Path, size: int, units: list[str]) -> None:
    """Replace the plan of one size in `results`; `size` may be larger than the number of units."""
    plan = plan_of(units) | {"removed": size, "refused": None}
    parquet.write_text(paths.plan(PRUNED.key, size, results), json.dumps(plan))
