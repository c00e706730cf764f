"""Models that others trained: sweeps, sub-layers and exports of them are what hooks on the model say.

`pytest tests/models/test_real_models.py --models FOLDER` takes every checkpoint folder in FOLDER.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT
from lamina.models.export import save as export
from lamina.models.load import load_folder
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from tests import ROOT
from tests.families import trials


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--models")
    folders = sorted(path.parent for path in Path(given).rglob("config.json")) if given else []
    metafunc.parametrize("folder", folders, ids=lambda folder: folder.name)


def samples(folder: Path) -> list[Sample]:
    """Questions of two endings, and a text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md")
    ]
    ids = [tuple(tokenizer(text)["input_ids"][:64]) for text in texts]
    found = []
    for number in range(3):
        rows = [Row(ids[number][:50], ids[other][50 : 54 + other], 4) for other in (number, number + 1)]
        found.append(Sample(number, "choices", 0, tuple(rows), str(number)))
    return [*found, Sample(3, "text", 0, (Row(ids[3][:1], ids[3][1:], 63),), "3")]


@pytest.mark.parametrize("kind", ["layer", "attention", "mlp"])
def test_a_sweep_gives_what_the_hooked_model_gives(folder: Path, kind: str) -> None:
    model, asked = load_folder(folder, "float32", False), samples(folder)
    layers, rows = layers_of(model), [row for sample in asked for row in sample.rows]
    units = all_units(len(layers), kind)
    found = engine.sweep(model, asked, units)
    for unit in (CURRENT, *units):
        with trials.bypassed(layers, [unit] if unit in units else []):
            wanted = trials.scored(model, rows)
        assert torch.allclose(torch.from_numpy(found.loglikelihood[found.index[unit]]), wanted, atol=1e-3), unit


def test_an_export_is_the_cut_model(folder: Path, tmp_path: Path) -> None:
    model, ids = load_folder(folder, "float32", False), [samples(folder)[3].sequence()]
    with trials.bypassed(layers_of(model), ["1"]):
        wanted = trials.logits(model, ids)
    (tmp_path / "base").mkdir()
    export.export(model, trials.source(tmp_path / "base", ["1"]), tmp_path / "out")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.allclose(trials.logits(back, ids), wanted, atol=1e-3)
