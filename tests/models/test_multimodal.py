"""The decoder of a model that also sees is pruned, measured and exported, and the rest of the model stays whole."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from lamina.engine import sweep
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from tests.families import configurations, trials
from tests.given.slow import slow_except

SEEING = ["gemma3", "qwen3_5", "llama4", "mistral3", "qwen2_5_vl"]
UNITS = ["2"]


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    """A tiny random model of a type, with its tower for images, as lamina loads it from a folder."""
    built = configurations.seeing(request.param)
    built.save_pretrained(tmp_path / "base")
    loaded = load_folder(tmp_path / "base", "auto", trust_remote_code=False)
    assert type(loaded) is type(built) and "ForConditionalGeneration" in type(built).__name__
    return loaded


def others(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights outside of the decoder's layers."""
    return {
        name: weight
        for name, weight in model.state_dict().items()
        if not re.search(r"language_model\.(model\.)?layers\.", name)
    }


@pytest.mark.parametrize("model", SEEING, indirect=True)
def test_a_sweep_is_right(model: PreTrainedModel, tmp_path: Path) -> None:
    trials.sweep(model, tmp_path)


@pytest.mark.parametrize("patched", slow_except([True], [False, True]))
@pytest.mark.parametrize("model", SEEING, indirect=True)
def test_an_export_keeps_the_model_whole(
    model: PreTrainedModel, patched: bool, tmp_path: Path
) -> None:
    generator, width = torch.Generator().manual_seed(0), trials._stream_width(model)
    patch = Patch(
        torch.randn(width, width, generator=generator) / 10, torch.randn(width, generator=generator)
    )
    patches, source = {(2, 3): patch} if patched else None, trials.source(tmp_path / "base", UNITS)
    with trials.bypassed(trials.stack(model), UNITS, (3, patch) if patched else None):
        wanted = trials.logits(model, [trials.text(12, 3)])
    form = save.export_variant(model, source, tmp_path / "out", patches)
    assert form == ("code" if patched else "stock")
    kind = AutoModelForCausalLM if patched else AutoModelForImageTextToText
    back = kind.from_pretrained(tmp_path / "out", trust_remote_code=patched).eval()
    trials.close(trials.logits(back, [trials.text(12, 3)]), wanted, "reloaded:")
    variant = materialise(model, {"units": UNITS}, patches)
    there, here = variant.state_dict(), back.state_dict()
    assert there.keys() == here.keys() and all(
        torch.equal(there[name], here[name]) for name in there
    )
    kept, whole = others(back), others(model)
    assert {name for name in whole if "patch_" not in name} <= kept.keys() and any(
        "vis" in name for name in kept
    )
    assert back.config.vision_config.to_dict() == model.config.vision_config.to_dict()
    assert f"{kind.__name__}.from_pretrained" in (tmp_path / "out" / "README.md").read_text()
    if patched:
        for plain in (AutoModelForImageTextToText, type(model)):
            with pytest.raises(Exception, match="lamina|trust_remote_code|num_attention_heads"):
                plain.from_pretrained(tmp_path / "out")
        ours = load_folder(tmp_path / "out", "auto", trust_remote_code=True)
        trials.close(trials.logits(ours, [trials.text(12, 3)]), wanted, "loaded:")


@pytest.mark.parametrize("model", ["mllama"], indirect=True)
def test_layers_that_need_an_image_are_refused(model: PreTrainedModel) -> None:
    with pytest.raises(LaminaError, match="mllama"):
        sweep.sweep_units(model, trials.samples(), ["1"])
