"""A cut model computes what the base model without those units would, in every family, with and without a cache."""

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
from lamina.models.surgery import NoAttention, remove_units
from tests.families.trials import bypassed
from tests.given import tiny
from tests.models.test_export import logits


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize(
    "units", [["2", "0", "3"], ["0.attention", "3.attention"], ["0.mlp", "3.mlp"]]
)
def test_a_cut_model_is_the_whole_one_with_its_units_passed_by(
    family: str, units: list[str]
) -> None:
    model, ids = tiny.model(family), tiny.tokens()
    with bypassed(layers_of(model), units):
        expected = logits(model, ids)
    cut = remove_units(share_weights(model), units)
    assert len(layers_of(cut)) == (2 if units[0] == "2" else 5)
    torch.testing.assert_close(logits(cut, ids), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, logits(model, ids), atol=1e-4)
    _assert_cache_agrees(cut, ids)


def _assert_cache_agrees(model: PreTrainedModel, ids: torch.Tensor) -> None:
    """Token by token with a cache gives the logits of one pass, beyond the sliding window too."""
    whole = logits(model, ids)
    with torch.no_grad():
        first = model(input_ids=ids[:, :7], use_cache=True)
        cache, parts = first.past_key_values, [first.logits]
        for position in range(7, ids.shape[1]):
            step = model(
                input_ids=ids[:, position : position + 1], past_key_values=cache, use_cache=True
            )
            cache = step.past_key_values
            parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_parts_of_a_model_are_found(family: str) -> None:
    model = tiny.model(family)
    assert family_of(model).name == family
    attention = {"gpt2": "attn", "gpt_neox": "attention"}.get(family, "self_attn")
    attention = "self_attention" if family in ("bloom", "falcon") else attention
    mlp = ["fc1", "fc2"] if family == "opt" else ["mlp"]
    for layer in layers_of(model):
        assert [half.name for half in sublayers_of(layer)["attention"]] == [attention]
        assert [half.name for half in sublayers_of(layer)["mlp"]] == mlp
    assert why_no_sublayers(model) is None
    norm = final_norm_of(model)
    assert norm is not None and "Norm" in type(norm).__name__


def test_the_maps_that_write_to_the_stream_are_found_by_what_they_do() -> None:
    for family, name in {
        "llama": "down_proj",
        "gpt2": "c_proj",
        "bloom": "dense_4h_to_h",
        "phi3": "down_proj",
    }.items():
        model = tiny.model(family)
        assert down_projection(model, 3) is layers_of(model)[3].mlp.get_submodule(name)
    for family, reason in {
        "gemma2": "a norm between the MLP and the stream",
        "mixtral": "has no one linear map",
    }.items():
        with pytest.raises(LaminaError, match=reason):
            down_projection(tiny.model(family), 3)


def test_the_base_model_is_untouched_and_its_weights_are_shared() -> None:
    model, ids = tiny.model(), tiny.tokens()
    before = logits(model, ids)
    variant = materialise(model, {"units": ["1", "3.attention"]}, None)
    assert len(layers_of(model)) == 5 and len(layers_of(variant)) == 4
    assert model.config.num_hidden_layers == 5 and variant.config.num_hidden_layers == 4
    base = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in variant.parameters()} < base
    assert torch.equal(before, logits(model, ids))
    assert isinstance(layers_of(variant)[2].self_attn, NoAttention)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("units", [["1", "2"], ["3", "4"]])
def test_a_patch_changes_the_stream_at_its_boundary(family: str, units: list[str]) -> None:
    model, ids = tiny.model(family), tiny.tokens()
    start, end = int(units[0]), int(units[1]) + 1
    generator = torch.Generator().manual_seed(1)
    patch = Patch(
        torch.randn(32, 32, generator=generator) / 10, torch.randn(32, generator=generator)
    )
    patched = materialise(model, {"units": units}, {(start, end): patch})
    with bypassed(layers_of(model), units, (end, patch)):
        torch.testing.assert_close(logits(patched, ids), logits(model, ids), atol=1e-4, rtol=1e-5)
    assert not torch.allclose(
        logits(patched, ids), logits(materialise(model, {"units": units}), ids), atol=1e-3
    )
    _assert_cache_agrees(patched, ids)


def test_a_patch_of_another_plan_is_refused() -> None:
    model = tiny.model()
    with pytest.raises(LaminaError, match="belongs to another plan"):
        materialise(model, {"units": ["1"]}, {(2, 3): Patch(torch.zeros(32, 32))})


def test_units_that_do_not_exist_are_named() -> None:
    for units, words in (
        (["9"], "layer 9 does not exist"),
        (["1", "1"], "named twice"),
        (["x"], "not a unit"),
    ):
        with pytest.raises(LaminaError, match=words):
            remove_units(tiny.model(), units)
    with pytest.raises(LaminaError, match="leaves no model"):
        remove_units(tiny.model(), [str(layer) for layer in range(5)])


def test_an_unlisted_family_loses_layers_and_halves() -> None:
    config = GPTJConfig(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=5, n_head=4, rotary_dim=8, n_positions=64
    )
    torch.manual_seed(0)
    model, ids = GPTJForCausalLM(config).eval(), tiny.tokens()
    for units in (["1"], ["1.mlp"]):
        with bypassed(layers_of(model), units):
            expected = logits(model, ids)
        cut = logits(remove_units(share_weights(model), units), ids)
        torch.testing.assert_close(cut, expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(cut, logits(model, ids), atol=1e-4)


@pytest.mark.parametrize("key", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_layers_that_read_what_others_hold_are_refused(key: str) -> None:
    model = tiny.model()
    setattr(model.config, key, 2)
    with pytest.raises(LaminaError, match=key):
        remove_units(model, ["1"])
    assert len(layers_of(model)) == 5
    remove_units(model, [])
