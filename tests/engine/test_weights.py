"""Magnitude and Taylor relevance against gradients written out with torch alone."""

import copy

import pytest
import torch

from lamina.engine import weights
from lamina.models.surgery import remove_units
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet
from tests.engine.test_sweep import random_samples
from tests.given import tiny

PARTS = {"": "", ".attention": "self_attn.", ".mlp": "mlp."}


def by_hand(model: torch.nn.Module, samples: list, prefix: str) -> tuple[float, float]:
    """Sums of abs(w) and of abs(w · mean gradient) over the parameters with a name that starts with `prefix`."""
    model = copy.deepcopy(model)
    total = torch.zeros(())
    for sample in samples:
        row = sample.rows[sample.gold]
        tokens = torch.tensor([row.context + row.continuation])
        scores = model(tokens).logits[0, len(row.context) - 1 : -1].log_softmax(-1)
        total = total - sum(scores[i, token] for i, token in enumerate(row.continuation)) / len(
            row.continuation
        )
    (total / len(samples)).backward()
    chosen = [weight for name, weight in model.named_parameters() if name.startswith(prefix)]
    return (
        float(sum(weight.detach().abs().sum() for weight in chosen)),
        float(sum((weight.detach() * weight.grad).abs().sum() for weight in chosen)),
    )


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("removed", [[], ["1"]])
def test_scores_equal_gradients_by_hand(part: str, removed: list[str]) -> None:
    model, samples = tiny.model(), random_samples(1, count=9, kinds=("choices", "text"))
    units = [f"{layer}{part}" for layer in range(5) if str(layer) not in removed]
    rows = weights.sweep_rows(model, samples, units, removed, "gradient", 400)
    table = parquet.from_rows(
        "sweeps", rows, model="m", calibration="c", selector="s", removed=len(removed)
    )
    found = score_sweep(table, ["taylor", "magnitude"], Context(removed=len(removed)), seed=0)
    cut = remove_units(copy.deepcopy(model), removed) if removed else model
    for place, unit in enumerate(units):
        magnitude, taylor = by_hand(cut, samples, f"model.layers.{place}.{PARTS[part]}")
        got = {row["metric"]: row for row in found if row["unit"] == unit}
        assert got["magnitude"]["score"] == pytest.approx(magnitude, rel=1e-5)
        assert got["magnitude"]["n_samples"] == 0
        assert got["taylor"]["score"] == pytest.approx(taylor, rel=1e-4)
        assert got["taylor"]["ci_low"] is None, "nine samples are too few for an interval"
        assert got["taylor"]["n_samples"] == len(samples)


@pytest.mark.slow
def test_gradients_of_half_precision_are_summed_in_float32() -> None:
    """Against a loop over the same bfloat16 gradients, added in float64; summed in bfloat16 the small ones are lost."""
    model, samples = (
        tiny.model().to(torch.bfloat16),
        random_samples(4, count=60, kinds=("text", "choices")),
    )
    units = {unit: list(model.model.layers[int(unit)].parameters()) for unit in ("0", "3")}
    wanted = [weight for group in units.values() for weight in group]
    each = []
    for sample in samples:
        sequence, first = torch.tensor([sample.sequence()]), len(sample.rows[sample.gold].context)
        scores = model(sequence).logits[0, :-1].float().log_softmax(-1)
        loss = -scores[range(len(scores)), sequence[0, 1:]][first - 1 :].mean()
        each.append([gradient.double() for gradient in torch.autograd.grad(loss, wanted)])
    expected = {
        weight: sum(parts) for weight, parts in zip(wanted, zip(*each, strict=True), strict=True)
    }
    sums = weights.summed_gradients(model, samples, wanted, token_budget=1)
    for weight, total in expected.items():
        assert float((sums[weight] - total).norm() / total.norm()) < 1e-6
    shares = weights.taylor_relevance(model, samples, list(units), [], token_budget=1)
    for unit, group in units.items():
        score = sum(
            float((weight.detach().double() * expected[weight]).abs().sum()) for weight in group
        )
        assert float(shares[unit].mean()) == pytest.approx(score / len(samples), rel=1e-6)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_has_both(family: str) -> None:
    rows = weights.sweep_rows(
        tiny.model(family), random_samples(3, count=3), ["0", "4"], [], "gradient", 400
    )
    assert len(rows) == 6
    assert all(row["magnitude"] > 0 and row["taylor"] == row["taylor"] for row in rows)
    assert {row["unit"] for row in rows if row["taylor"] != 0} == {"0", "4"}
