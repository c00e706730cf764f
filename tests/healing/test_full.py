"""Training of all weights: the base stays, what is saved is what was trained, random weights know
nothing of the base.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.errors import LaminaError
from lamina.healing import full
from lamina.healing.batches import TrainingSource
from lamina.healing.full import Full
from lamina.healing.training import MasterWeights
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from tests.given import tiny
from tests.healing.examples import copy_parameters, has_parameters, validation_losses

PLAN = {"units": ["1", "3"]}


def make_sources() -> list[TrainingSource]:
    """Twenty texts of twelve tokens, of two patterns that repeat after the first token."""
    texts = []
    for first_token in range(20, 40):
        pattern = [9, 10, 11] * 4 if first_token % 2 else [5, 6, 7, 8] * 3
        texts.append([first_token, *pattern[1:]])
    return [TrainingSource(tiny.samples(texts))]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("start", ["pruned", "random"])
def test_what_is_saved_is_what_was_trained_and_the_base_stays(
    family: str, start: str, tmp_path: Path
) -> None:
    base = tiny.model(family)
    parameters_before = copy_parameters(base)
    options = Full(
        start=start, epochs=3, learning_rate=0.003, warmup_steps=0, batch=4, objective="lm"
    )
    weights, rows = full.heal(base, PLAN, None, make_sources(), options)
    assert has_parameters(base, parameters_before)
    assert not any(weight.requires_grad for weight in weights.values())
    losses = validation_losses(rows)
    assert losses[-1] < losses[0]
    n_epochs, n_training_texts, n_scored_tokens = 3, 17, 11
    assert rows[-1]["tokens"] == n_epochs * n_training_texts * n_scored_tokens

    full.save(weights, tmp_path)
    loaded = materialise(base, PLAN, None, tmp_path)
    assert dict(loaded.named_parameters()).keys() == weights.keys()
    assert has_parameters(loaded, dict(weights))
    token_ids = tiny.tokens()
    assert not torch.equal(loaded(token_ids).logits, materialise(base, PLAN)(token_ids).logits)
    with pytest.raises(LaminaError, match="belong to another variant"):
        materialise(base, {"units": ["1"]}, None, tmp_path)


def test_a_tied_head_stays_tied(tmp_path: Path) -> None:
    """GPT-2's head is its embedding, which is trained and saved once."""
    base = tiny.model("gpt2")
    options = Full(epochs=1, max_steps=1, warmup_steps=0)
    weights, _ = full.heal(base, PLAN, None, make_sources(), options)
    full.save(weights, tmp_path)
    loaded = materialise(base, PLAN, None, tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


@pytest.mark.parametrize("layers_again", ["shared", "copied"])
def test_a_layer_that_runs_again_is_trained_once_or_as_a_copy(
    layers_again: str, tmp_path: Path
) -> None:
    base = tiny.model()
    parameters_before = copy_parameters(base)
    plan = {"units": ["1x2", "3"]}
    options = Full(layers_again=layers_again, epochs=2, warmup_steps=0, objective="lm")
    weights, _ = full.heal(base, plan, None, make_sources(), options)
    assert has_parameters(base, parameters_before)
    full.save(weights, tmp_path)
    loaded = materialise(base, plan, None, tmp_path)
    assert has_parameters(loaded, dict(weights))

    first_run, second_run = (layer.mlp.up_proj.weight for layer in layers_of(loaded)[1:3])
    assert not torch.equal(first_run, layers_of(base)[1].mlp.up_proj.weight)
    assert (first_run is second_run) == (layers_again == "shared")
    assert torch.equal(first_run, second_run) == (layers_again == "shared")


def initial_weights(base_seed: int, start: str) -> dict[str, nn.Parameter]:
    """The weights that training starts from: those after one step that changes nothing."""
    options = Full(
        start=start, epochs=1, max_steps=1, learning_rate=1e-30, warmup_steps=0, objective="lm"
    )
    weights, _ = full.heal(tiny.model(seed=base_seed), PLAN, None, make_sources(), options)
    return weights


def test_pruned_weights_start_as_the_variant() -> None:
    assert has_parameters(materialise(tiny.model(), PLAN), dict(initial_weights(0, "pruned")))


def test_random_weights_do_not_depend_on_the_base() -> None:
    random_weights = initial_weights(0, "random")
    for name, weight in initial_weights(1, "random").items():
        assert torch.equal(weight, random_weights[name])
    for name, weight in materialise(tiny.model(), PLAN).named_parameters():
        is_matrix = weight.ndim > 1  # norms start from ones everywhere
        assert not (is_matrix and torch.equal(weight, random_weights[name]))


def test_random_weights_are_refused_where_something_is_left_of_a_repair() -> None:
    patches = {(1, 2): Patch(torch.zeros(32, 32))}
    options = Full(start="random")
    with pytest.raises(LaminaError, match="repairs: .none."):
        full.heal(tiny.model(), {"units": ["1"]}, patches, make_sources(), options)


def test_a_step_is_that_of_adam_on_float32_copies_of_the_weights() -> None:
    """Against plain torch, with gradients of a bfloat16 model summed over two parts."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 8).bfloat16())
    expected = weight.detach().float().requires_grad_()
    masters = MasterWeights({"w": weight})
    master = masters.float32_weights["w"]
    optimiser = torch.optim.AdamW([master], lr=1e-4, weight_decay=0.0)
    expected_optimiser = torch.optim.AdamW([expected], lr=1e-4, weight_decay=0.0)

    for _ in range(20):
        inputs = torch.randn(2, 4, 16).bfloat16()
        expected.grad = torch.zeros(16, 8)
        for part in inputs:
            rounded = expected.detach().bfloat16().requires_grad_()
            (gradient,) = torch.autograd.grad((part @ rounded).square().sum(), rounded)
            expected.grad += gradient.float()
            (part @ weight).square().sum().backward()
        expected_optimiser.step()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        masters.round_weights()
        assert torch.equal(weight.detach(), expected.detach().bfloat16())
        assert weight.grad is None

    masters.release()
    (inputs[0] @ weight).sum().backward()
    assert weight.grad is not None
