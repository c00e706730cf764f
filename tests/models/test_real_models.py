"""Small trained models, where they are at hand: sweeps, halves and exports of them are what hooks on the model say."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT
from lamina.models.export import save as export
from lamina.models.load import load_folder
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from tests.families import trials
from tests.pipeline.project import SHARED

NAMES = ("stories260K-llama", "tiny1m-llama", "babyllama-tok105-llama")

pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason="REAL MODELS NOT TESTED: no folder shared/real of models beside the project"
)


def stories(name: str) -> list[Sample]:
    """Questions of two endings, and a text."""
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / name)
    texts = json.loads((SHARED / "data" / "tinystories_1000.json").read_text(encoding="utf-8"))[:4]
    ids = [tuple(tokenizer(text)["input_ids"][:64]) for text in texts]
    found = []
    for number in range(3):
        rows = [Row(ids[number][:50], ids[other][50 : 54 + other], 4) for other in (number, number + 1)]
        found.append(Sample(number, "choices", 0, tuple(rows), str(number)))
    return [*found, Sample(3, "text", 0, (Row(ids[3][:1], ids[3][1:], 63),), "3")]


def load(name: str) -> PreTrainedModel:
    return load_folder(SHARED / "models" / name, "float32", False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["layer", "attention", "mlp"])
def test_a_sweep_gives_what_the_hooked_model_gives(name: str, kind: str) -> None:
    model, samples = load(name), stories(name)
    layers, rows = layers_of(model), [row for sample in samples for row in sample.rows]
    units = all_units(len(layers), kind)
    found = engine.sweep(model, samples, units)
    for unit in (CURRENT, *units):
        with trials.bypassed(layers, [unit] if unit in units else []):
            wanted = trials.scored(model, rows)
        assert torch.allclose(torch.from_numpy(found.loglikelihood[found.index[unit]]), wanted, atol=1e-3), unit


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_cut_model(name: str, tmp_path: Path) -> None:
    model, ids = load(name), [stories(name)[3].sequence()]
    with trials.bypassed(layers_of(model), ["1"]):
        wanted = trials.logits(model, ids)
    (tmp_path / "base").mkdir()
    export.export(model, trials.source(tmp_path / "base", ["1"]), tmp_path / "out")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.allclose(trials.logits(back, ids), wanted, atol=1e-3)
