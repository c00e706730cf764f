"""benchmarks/repair.py measures the model that it says, and counts what it costs."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lamina.data.calibrations import Row, Sample
from tests.unit import tiny

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROMPT = 48


@pytest.fixture
def repair(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("repair")


def texts(seed: int, count: int = 24) -> list[Sample]:
    drawn = tiny.tokens(count, 12, seed).tolist()
    return [Sample(n, "text", 0, (Row((ids[0],), tuple(ids[1:]), 0),), str(n)) for n, ids in enumerate(drawn)]


@pytest.mark.parametrize("repair", ["ghost", "streamline", "ghost+distill", "streamline_general+distill"])
def test_a_measured_loss_is_that_of_the_variant_as_transformers_runs_it(
    repair: str, repair: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = importlib.import_module("repair_variants")
    monkeypatch.setitem(variants.HEALINGS["distill"], "epochs", 1)
    monkeypatch.setitem(variants.REPAIRS, "streamline", {"method": "streamline", "epochs": 1})
    model, judged = tiny.model(), texts(2)
    case = repair.Case("tiny", model, 0, texts(0), texts(1), judged, [])
    measuring = variants.Variants(case, [(1, 2), (3, 4)])
    measuring.measure([(["1", "3"], repair)])
    built = measuring.model(["1", "3"], repair)
    assert built.config.num_hidden_layers == 3
    ids = torch.tensor([sample.sequence() for sample in judged])
    with torch.no_grad():
        logits = built(ids).logits[:, :-1].log_softmax(-1)
        plain = model(ids).logits[:, :-1].log_softmax(-1)
    expected, unpruned = (-x.gather(2, ids[:, 1:, None]).sum((1, 2)).numpy() for x in (logits, plain))
    found = measuring.row(["1", "3"], repair)["nll"]
    assert found == pytest.approx(expected, rel=1e-4)
    assert found != pytest.approx(unpruned, rel=1e-2)


def test_costs_are_the_parameters_and_products_that_were_removed_less_the_maps_that_were_added(
    repair: ModuleType,
) -> None:
    model = tiny.model()
    case = repair.Case("tiny", model, 0, texts(0), [], texts(1), [])
    measuring = repair.Variants(case, [(1, 2), (3, 4)])
    base, bare, patched = (
        repair.repair_costs.counted(one)
        for one in (model, measuring.model(["1", "3"], "none"), measuring.model(["1", "3"], "ghost"))
    )
    config = model.config
    layer = model.model.layers[1]
    weights = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert base["parameters"] - bare["parameters"] == 2 * sum(weight.numel() for weight in layer.parameters())
    assert patched["parameters"] - bare["parameters"] == 2 * config.hidden_size**2
    # A product of two numbers and a sum for each weight and token, and the same for scores and for what they weigh.
    heads = config.num_attention_heads * layer.self_attn.head_dim
    for figure, new, behind in (("prefill", PROMPT, PROMPT), ("decode", 1, PROMPT + 1)):
        assert base[figure] - bare[figure] == 2 * (2 * new * weights + 4 * new * behind * heads)
        assert patched[figure] - bare[figure] == 2 * 2 * new * config.hidden_size**2
