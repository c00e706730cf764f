"""The decoder of a model that also sees is pruned and exported; the rest of the model stays whole.

Numbers are compared with hooks on the model that hand the input of a layer on.
"""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from lamina.engine import sweep
from lamina.errors import LaminaError
from lamina.models.export import save
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from tests.families import configurations, trials
from tests.given.slow import slow_except
from tests.given.variants import random_patch, source_of

SEEING = ["gemma3", "qwen3_5", "llama4", "mistral3", "qwen2_5_vl"]
UNITS = ["2"]


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    """A tiny random model of a type, with its tower for images, as lamina loads it."""
    original = configurations.seeing(request.param)
    original.save_pretrained(tmp_path / "base")
    loaded = load_folder(tmp_path / "base", "auto", trust_remote_code=False)
    assert "ForConditionalGeneration" in type(original).__name__
    assert type(loaded) is type(original)
    return loaded


def weights_outside_the_decoder(model: PreTrainedModel) -> set[str]:
    """The names of weights that are not of the decoder's layers."""
    in_decoder = re.compile(r"language_model\.(model\.)?layers\.")
    return {name for name in model.state_dict() if not in_decoder.search(name)}


def assert_same_weights(reloaded: PreTrainedModel, variant: PreTrainedModel) -> None:
    reloaded_state = reloaded.state_dict()
    variant_state = variant.state_dict()
    assert reloaded_state.keys() == variant_state.keys()
    for name, weight in variant_state.items():
        assert torch.equal(reloaded_state[name], weight), name


@pytest.mark.parametrize("model", slow_except(["gemma3"], SEEING), indirect=True)
def test_a_sweep_is_right(model: PreTrainedModel, tmp_path: Path) -> None:
    trials.sweep(model, tmp_path)


@pytest.mark.parametrize("model", slow_except(["gemma3"], SEEING), indirect=True)
def test_a_stock_export_keeps_the_model_whole(model: PreTrainedModel, tmp_path: Path) -> None:
    texts = [trials.text(12, 3)]
    with trials.bypassed(trials.stack(model), UNITS):
        expected_logits = trials.logits(model, texts)
    folder = tmp_path / "export"

    form = save.export_variant(model, source_of(tmp_path / "base", UNITS), folder)

    assert form == "stock"
    reloaded = AutoModelForImageTextToText.from_pretrained(folder).eval()
    trials.close(trials.logits(reloaded, texts), expected_logits, "reloaded:")
    assert_same_weights(reloaded, materialise(model, {"units": UNITS}))
    assert weights_outside_the_decoder(model) <= weights_outside_the_decoder(reloaded)
    assert reloaded.config.vision_config.to_dict() == model.config.vision_config.to_dict()
    card = (folder / "README.md").read_text()
    assert "AutoModelForImageTextToText.from_pretrained" in card


@pytest.mark.parametrize("model", slow_except(["gemma3"], SEEING), indirect=True)
def test_an_export_with_a_patch_keeps_the_model_whole(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    texts = [trials.text(12, 3)]
    patch = random_patch(trials.stream_width(model))
    with trials.bypassed(trials.stack(model), UNITS, (3, patch)):
        expected_logits = trials.logits(model, texts)
    folder = tmp_path / "export"

    source = source_of(tmp_path / "base", UNITS)
    form = save.export_variant(model, source, folder, {(2, 3): patch})

    assert form == "code"
    reloaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    trials.close(trials.logits(reloaded, texts), expected_logits, "reloaded:")
    lamina_model = load_folder(folder, "auto", trust_remote_code=True)
    trials.close(trials.logits(lamina_model, texts), expected_logits, "loaded:")
    assert_same_weights(reloaded, materialise(model, {"units": UNITS}, {(2, 3): patch}))
    assert weights_outside_the_decoder(model) <= weights_outside_the_decoder(reloaded)
    assert reloaded.config.vision_config.to_dict() == model.config.vision_config.to_dict()
    card = (folder / "README.md").read_text()
    assert "AutoModelForCausalLM.from_pretrained" in card
    for plain_class in (AutoModelForImageTextToText, type(model)):
        with pytest.raises(Exception, match="lamina|trust_remote_code|num_attention_heads"):
            plain_class.from_pretrained(folder)


@pytest.mark.parametrize("model", ["mllama"], indirect=True)
def test_layers_that_need_an_image_are_refused(model: PreTrainedModel) -> None:
    with pytest.raises(LaminaError, match="mllama"):
        sweep.sweep_units(model, trials.samples(), ["1"])
