"""Training of all weights: the base stays, what is saved is what was trained, random weights know nothing of it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.errors import LaminaError
from lamina.healing import full
from lamina.healing.full import Full
from lamina.healing.training import Masters, Source
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from tests.given import tiny

PLAN = {"units": ["1", "3"]}


def data() -> list[Source]:
    texts = [
        [start, *([5, 6, 7, 8] * 3, [9, 10, 11] * 4)[start % 2][1:]] for start in range(20, 40)
    ]
    return [Source(tiny.samples(texts))]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("start", ["pruned", "random"])
def test_what_is_saved_is_what_was_trained_and_the_base_stays(
    family: str, start: str, tmp_path: Path
) -> None:
    """GPT-2's head is its embedding: it is saved once, and stays tied."""
    base, ids = tiny.model(family), tiny.tokens()
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    options = Full(
        start=start, epochs=3, learning_rate=0.003, warmup_steps=0, batch=4, objective="lm"
    )
    weights, rows = full.heal(base, PLAN, None, data(), options)
    assert all(torch.equal(weight, before[name]) for name, weight in base.named_parameters())
    assert not any(weight.requires_grad for weight in weights.values())
    losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert losses[-1] < losses[0] and rows[-1]["tokens"] == 3 * 17 * 11
    full.save(weights, tmp_path)
    loaded = materialise(base, PLAN, None, tmp_path)
    assert {name: weight.tolist() for name, weight in loaded.named_parameters()} == {
        name: weight.tolist() for name, weight in weights.items()
    }
    assert not torch.equal(loaded(ids).logits, materialise(base, PLAN)(ids).logits)
    if family == "gpt2":
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    with pytest.raises(LaminaError, match="belong to another variant"):
        materialise(base, {"units": ["1"]}, None, tmp_path)


def test_pruned_weights_start_as_the_variant_and_random_ones_do_not_depend_on_the_base() -> None:
    def begun(seed: int, start: str) -> dict:
        options = Full(
            start=start, epochs=1, max_steps=1, learning_rate=1e-30, warmup_steps=0, objective="lm"
        )
        return full.heal(tiny.model(seed=seed), PLAN, None, data(), options)[0]

    expected = dict(materialise(tiny.model(), PLAN).named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in begun(0, "pruned").items())
    one, other = begun(0, "random"), begun(1, "random")
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    assert not any(
        torch.equal(weight, expected[name]) for name, weight in one.items() if weight.ndim > 1
    )


def test_random_weights_are_refused_where_something_is_left_of_a_repair() -> None:
    patches = {(1, 2): Patch(torch.zeros(32, 32))}
    with pytest.raises(LaminaError, match="repairs: .none."):
        full.heal(tiny.model(), {"units": ["1"]}, patches, data(), Full(start="random"))


def test_a_step_is_that_of_adam_on_float32_copies_of_the_weights() -> None:
    """Plain torch: gradients of a bfloat16 model, summed over two parts, moments and weights in float32."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 8).bfloat16())
    own = weight.detach().float().requires_grad_()
    masters = Masters({"w": weight})
    ours, theirs = (
        torch.optim.AdamW([each], lr=1e-4, weight_decay=0.0) for each in (masters.values["w"], own)
    )
    for _ in range(20):
        inputs = torch.randn(2, 4, 16).bfloat16()
        total = torch.zeros(16, 8)
        for part in inputs:
            copy = own.detach().bfloat16().requires_grad_()
            (gradient,) = torch.autograd.grad((part @ copy).square().sum(), copy)
            total += gradient.float()
            (part @ weight).square().sum().backward()
        own.grad = total
        for optimiser in (ours, theirs):
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        masters.round()
        assert torch.equal(weight.detach(), own.detach().bfloat16()) and weight.grad is None
    masters.release()
    (inputs[0] @ weight).sum().backward()
    assert weight.grad is not None
