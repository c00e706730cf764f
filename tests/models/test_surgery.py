"""A cut model of every family computes what the base model does with hooks on its units."""

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Patch, share_weights
from lamina.models.export.writing import down_projection
from lamina.models.materialise import materialise
from lamina.models.structure import (
    family_of,
    final_norm_of,
    layers_of,
    sublayers_of,
    why_no_sublayers,
)
from lamina.models.surgery import apply_edits
from tests.families.trials import bypassed
from tests.given import tiny
from tests.given.slow import slow_except
from tests.given.variants import compute_logits, random_patch


def compute_bypassed_logits(
    model: PreTrainedModel,
    units: list[str],
    token_ids: torch.Tensor,
    patch: tuple[int, Patch] | None = None,
) -> torch.Tensor:
    with bypassed(layers_of(model), units, patch):
        return compute_logits(model, token_ids)


@torch.no_grad()
def compute_cached_logits(model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor:
    """Logits of seven tokens in one pass, and of the others token by token with a cache."""
    outputs = model(input_ids=token_ids[:, :7], use_cache=True)
    logits = [outputs.logits]
    for position in range(7, token_ids.shape[1]):
        next_ids = token_ids[:, position : position + 1]
        cache = outputs.past_key_values
        outputs = model(input_ids=next_ids, past_key_values=cache, use_cache=True)
        logits.append(outputs.logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
@pytest.mark.parametrize(
    ("units", "n_kept"),
    [(["2", "0", "3"], 2), (["0.attention", "3.attention"], 5), (["0.mlp", "3.mlp"], 5)],
)
def test_a_cut_model_is_the_base_model_with_its_units_bypassed(
    family: str, units: list[str], n_kept: int
) -> None:
    """With a cache too, beyond the sliding window."""
    model = tiny.model(family)
    token_ids = tiny.tokens()

    cut_model = apply_edits(share_weights(model), units)

    assert len(layers_of(cut_model)) == n_kept
    cut_logits = compute_logits(cut_model, token_ids)
    expected_logits = compute_bypassed_logits(model, units, token_ids)
    torch.testing.assert_close(cut_logits, expected_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(cut_logits, compute_logits(model, token_ids), atol=1e-4)
    cached_logits = compute_cached_logits(cut_model, token_ids)
    torch.testing.assert_close(cached_logits, cut_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("units", [["1"], ["1.mlp"]])
def test_a_family_without_an_entry_is_cut_by_its_structure(units: list[str]) -> None:
    config = GPTJConfig(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=5, n_head=4, rotary_dim=8, n_positions=64
    )
    torch.manual_seed(0)
    model = GPTJForCausalLM(config).eval()
    token_ids = tiny.tokens()

    cut_logits = compute_logits(apply_edits(share_weights(model), units), token_ids)

    expected_logits = compute_bypassed_logits(model, units, token_ids)
    torch.testing.assert_close(cut_logits, expected_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(cut_logits, compute_logits(model, token_ids), atol=1e-4)


ATTENTION_NAMES = {
    "gpt2": "attn",
    "gpt_neox": "attention",
    "bloom": "self_attention",
    "falcon": "self_attention",
}
MLP_NAMES = {"opt": ["fc1", "fc2"]}


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_sublayers_and_final_norm_are_found(family: str) -> None:
    model = tiny.model(family)
    assert family_of(model).name == family
    assert why_no_sublayers(model) is None
    for layer in layers_of(model):
        sublayers = sublayers_of(layer)
        attention_names = [module.name for module in sublayers["attention"]]
        mlp_names = [module.name for module in sublayers["mlp"]]
        assert attention_names == [ATTENTION_NAMES.get(family, "self_attn")]
        assert mlp_names == MLP_NAMES.get(family, ["mlp"])
    assert "Norm" in type(final_norm_of(model)).__name__


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "down_proj"),
        ("gpt2", "c_proj"),
        ("bloom", "dense_4h_to_h"),
        ("phi3", "down_proj"),
    ],
)
def test_the_map_that_writes_to_the_stream_is_found(family: str, name: str) -> None:
    model = tiny.model(family)
    assert down_projection(model, 3) is layers_of(model)[3].mlp.get_submodule(name)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gemma2", "a norm or a factor between the MLP and the stream"),
        ("mixtral", "has no single linear map"),
    ],
)
def test_a_model_without_one_map_that_writes_to_the_stream_is_refused(
    family: str, reason: str
) -> None:
    with pytest.raises(LaminaError, match=reason):
        down_projection(tiny.model(family), 3)


def test_the_base_model_is_untouched_and_its_weights_are_shared() -> None:
    model = tiny.model()
    token_ids = tiny.tokens()
    logits_before = compute_logits(model, token_ids)

    variant = materialise(model, {"units": ["1", "3.attention"]}, None)

    assert len(layers_of(variant)) == 4
    assert variant.config.num_hidden_layers == 4
    assert len(layers_of(model)) == 5
    assert model.config.num_hidden_layers == 5
    assert torch.equal(compute_logits(model, token_ids), logits_before)
    base_addresses = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in variant.parameters()} < base_addresses


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
@pytest.mark.parametrize(("units", "boundary"), [(["1", "2"], (1, 3)), (["3", "4"], (3, 5))])
def test_a_patch_changes_the_stream_at_its_boundary(
    family: str, units: list[str], boundary: tuple[int, int]
) -> None:
    model = tiny.model(family)
    token_ids = tiny.tokens()
    patch = random_patch(seed=1)

    patched_model = materialise(model, {"units": units}, {boundary: patch})

    patched_logits = compute_logits(patched_model, token_ids)
    expected_logits = compute_bypassed_logits(model, units, token_ids, (boundary[1], patch))
    torch.testing.assert_close(patched_logits, expected_logits, atol=1e-4, rtol=1e-5)
    cut_logits = compute_logits(materialise(model, {"units": units}), token_ids)
    assert not torch.allclose(patched_logits, cut_logits, atol=1e-3)
    cached_logits = compute_cached_logits(patched_model, token_ids)
    torch.testing.assert_close(cached_logits, patched_logits, atol=1e-4, rtol=1e-4)


def test_a_patch_of_another_plan_is_refused() -> None:
    patches = {(2, 3): Patch(torch.zeros(32, 32))}
    with pytest.raises(LaminaError, match="belongs to another plan"):
        materialise(tiny.model(), {"units": ["1"]}, patches)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (["9"], "layer 9 does not exist"),
        (["1", "1"], "named twice"),
        (["x"], "not an edit"),
        (["0", "1", "2", "3", "4"], "leaves no model"),
    ],
)
def test_units_that_cannot_be_removed_are_named(units: list[str], message: str) -> None:
    with pytest.raises(LaminaError, match=message):
        apply_edits(tiny.model(), units)


@pytest.mark.parametrize("setting", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_layers_that_read_what_others_hold_are_refused(setting: str) -> None:
    model = tiny.model()
    setattr(model.config, setting, 2)
    with pytest.raises(LaminaError, match=setting):
        apply_edits(model, ["1"])
    assert len(layers_of(model)) == 5
    apply_edits(model, [])
