"""Magnitude and Taylor relevance against gradients written out with torch alone."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import weights
from lamina.models.surgery import apply_edits
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet
from tests.given import tiny
from tests.given.cut_models import random_samples
from tests.given.slow import slow_except

MODULE_BY_KIND = {"layer": "", "attention": ".self_attn", "mlp": ".mlp"}


def gold_loss(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """Mean negative log-likelihood of the gold continuation's tokens."""
    row = sample.rows[sample.gold]
    token_ids = torch.tensor([row.context + row.continuation])
    logprobs = model(token_ids).logits[0, :-1].float().log_softmax(-1)
    continuation_logprobs = logprobs[len(row.context) - 1 :]
    continuation = torch.tensor(row.continuation)[:, None]
    return -continuation_logprobs.gather(1, continuation).mean()


def summed_magnitude(parameters: Sequence[nn.Parameter]) -> float:
    """Sum of abs(w)."""
    return float(sum(parameter.detach().abs().sum() for parameter in parameters))


def summed_taylor(parameters: Sequence[nn.Parameter]) -> float:
    """Sum of abs(w · mean gradient)."""
    products = [(weight.detach() * weight.grad).abs().sum() for weight in parameters]
    return float(sum(products))


@pytest.mark.parametrize("kind", MODULE_BY_KIND)
@pytest.mark.parametrize("removed_units", [[], ["1"]])
def test_scores_equal_gradients_by_hand(kind: str, removed_units: list[str]) -> None:
    model = tiny.model()
    samples = random_samples(1, count=9, kinds=("choices", "text"))
    layers = [layer for layer in range(5) if str(layer) not in removed_units]
    suffix = "" if kind == "layer" else f".{kind}"
    units = [f"{layer}{suffix}" for layer in layers]

    rows = weights.sweep_rows(model, samples, units, removed_units, "gradient", 400)

    cut_model = copy.deepcopy(model)
    if removed_units:
        cut_model = apply_edits(cut_model, removed_units)
    losses = [gold_loss(cut_model, sample) for sample in samples]
    torch.stack(losses).mean().backward()
    table = parquet.from_rows(
        "sweeps", rows, model="m", calibration="c", selector="s", removed=len(removed_units)
    )
    context = Context(removed=len(removed_units))
    scores = score_sweep(table, ["taylor", "magnitude"], context, seed=0)
    for layer_index, unit in enumerate(units):
        module_name = f"model.layers.{layer_index}{MODULE_BY_KIND[kind]}"
        parameters = list(cut_model.get_submodule(module_name).parameters())
        row_by_metric = {row["metric"]: row for row in scores if row["unit"] == unit}
        magnitude_row = row_by_metric["magnitude"]
        assert magnitude_row["score"] == pytest.approx(summed_magnitude(parameters), rel=1e-5)
        assert magnitude_row["n_samples"] == 0
        taylor_row = row_by_metric["taylor"]
        assert taylor_row["score"] == pytest.approx(summed_taylor(parameters), rel=1e-4)
        assert taylor_row["n_samples"] == len(samples)
        assert taylor_row["ci_low"] is None, "nine samples are too few for an interval"


@pytest.mark.slow
def test_gradients_of_half_precision_are_summed_in_float32() -> None:
    """Against the same bfloat16 gradients in float64; a sum in bfloat16 loses the small ones."""
    model = tiny.model().to(torch.bfloat16)
    samples = random_samples(4, count=60, kinds=("text", "choices"))
    parameters_by_unit: dict[str, list[nn.Parameter]] = {}
    for unit in ("0", "3"):
        parameters_by_unit[unit] = list(model.model.layers[int(unit)].parameters())
    parameters = [*parameters_by_unit["0"], *parameters_by_unit["3"]]
    expected_sums = {
        parameter: torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters
    }
    for sample in samples:
        gradients = torch.autograd.grad(gold_loss(model, sample), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            expected_sums[parameter] += gradient.double()

    sums = weights.summed_gradients(model, samples, parameters, token_budget=1)
    shares = weights.taylor_relevance(model, samples, ["0", "3"], [], token_budget=1)

    for parameter, expected_sum in expected_sums.items():
        relative_error = (sums[parameter] - expected_sum).norm() / expected_sum.norm()
        assert float(relative_error) < 1e-6
    for unit, unit_parameters in parameters_by_unit.items():
        expected_score = 0.0
        for parameter in unit_parameters:
            product = parameter.detach().double() * expected_sums[parameter]
            expected_score += float(product.abs().sum()) / len(samples)
        assert float(shares[unit].mean()) == pytest.approx(expected_score, rel=1e-6)


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_every_family_has_magnitude_and_taylor_relevance(family: str) -> None:
    model = tiny.model(family)
    samples = random_samples(3, count=3)

    rows = weights.sweep_rows(model, samples, ["0", "4"], [], "gradient", 400)

    assert len(rows) == 2 * len(samples)
    assert all(row["magnitude"] > 0 for row in rows)
    assert all(row["taylor"] == row["taylor"] for row in rows), "NaN"
    assert {row["unit"] for row in rows if row["taylor"] != 0} == {"0", "4"}
