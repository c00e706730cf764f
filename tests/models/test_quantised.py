"""A folder of quantised weights is dequantised once: the same numbers in an ordinary checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from lamina.models.checkpoint import is_quantised
from lamina.models.dequantise import dequantise_model
from lamina.models.load import load_folder
from lamina.models.manifest import describe_model
from lamina.models.surgery import remove_units
from lamina.options.models import Model
from tests.families import configurations
from tests.given import tiny

State = dict[str, torch.Tensor]
BLOCK = 16
FP4 = torch.tensor(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
)  # E2M1, in the order of its bits


def state_config(folder: Path, state: State, quantised: dict[str, object]) -> None:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))


def fp8(folder: Path) -> State:
    """A Llama whose projections are FP8 in blocks, each with its scale; and what they are worth."""
    tiny.model().save_pretrained(folder)
    stored, worth = State(), State()
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = worth[name] = weight
        if name.endswith("proj.weight"):
            blocks = weight.reshape(weight.shape[0] // BLOCK, BLOCK, -1, BLOCK)
            scale = blocks.abs().amax((1, 3)) / 448
            stored[name] = (
                (blocks / scale[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
            )
            stored[f"{name}_scale_inv"] = scale
            values = stored[name].float().reshape(blocks.shape) * scale[:, None, :, None]
            worth[name] = values.reshape(weight.shape)
    quantised = {
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
        "activation_scheme": "dynamic",
    }
    state_config(folder, stored, quantised)
    return worth


def mxfp4(folder: Path) -> State:
    """A gpt-oss whose experts are pairs of 4-bit numbers, with an exponent for each 32 of a row; and their worth."""
    sizes = {"intermediate_size": 64, "hidden_size": 64, "head_dim": 16, "num_local_experts": 2}
    configurations.model("gpt_oss", **sizes).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    stored, worth = State(), State()
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = worth[name] = weight
        if name.endswith("_proj") and weight.dim() == 3:
            experts, inner, outer = weight.shape
            packed = torch.randint(
                0, 256, (experts, outer, inner // 32, 16), generator=generator, dtype=torch.uint8
            )
            scales = torch.randint(
                120, 128, (experts, outer, inner // 32), generator=generator, dtype=torch.uint8
            )
            stored |= {f"{name}_blocks": packed, f"{name}_scales": scales}
            del stored[name]
            pairs = torch.stack([FP4[(packed & 15).long()], FP4[(packed >> 4).long()]], -1)
            values = pairs.flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
            worth[name] = values.reshape(experts, outer, inner).transpose(1, 2).contiguous()
    state_config(folder, stored, {"quant_method": "mxfp4", "modules_to_not_convert": []})
    return worth


def bitsandbytes(folder: Path) -> State:
    """A Llama in 4 bits, as transformers writes it; and what it is worth."""
    pytest.importorskip("bitsandbytes")
    plain = folder.with_name("plain")
    tiny.model(hidden_size=64, intermediate_size=64, head_dim=16).save_pretrained(plain)
    options = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    model = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=options, dtype=torch.float32
    )
    model.save_pretrained(folder)
    from bitsandbytes.functional import dequantize_4bit

    states = {
        name: module for name, module in model.named_modules() if hasattr(module, "quant_state")
    }
    return load_file(plain / "model.safetensors") | {
        f"{name}.weight": dequantize_4bit(module.weight.data, module.weight.quant_state)
        for name, module in states.items()
        if module.quant_state is not None or getattr(module.weight, "quant_state", None) is not None
    }


@pytest.mark.parametrize("make", [fp8, mxfp4, bitsandbytes])
def test_the_weights_are_those_that_quantising_left(
    tmp_path: Path, make: Callable[[Path], State]
) -> None:
    source, folder = tmp_path / "source", tmp_path / "checkpoint"
    worth = make(source)
    tiny.tokenizer().save_pretrained(source)
    stored = load_file(source / "model.safetensors").values()
    assert is_quantised(source) and {torch.uint8, torch.float8_e4m3fn} & {
        weight.dtype for weight in stored
    }
    dequantise_model(source / "config.json", folder, "float32")
    assert not is_quantised(folder) and (folder / "tokenizer.json").is_file()
    found = load_folder(folder, "auto", False)
    for name, weight in found.state_dict().items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, worth[name].float(), rtol=0, atol=1e-6)
    manifest = describe_model("mine", Model(source=str(source)), folder)
    assert manifest["parameters"] == sum(weight.numel() for weight in found.parameters())
    assert manifest["weights_bytes"] == 4 * manifest["parameters"]
    # A cut of it is saved and loaded as any other model.
    cut = remove_units(found, ["1"])
    cut.save_pretrained(tmp_path / "cut")
    again = load_folder(tmp_path / "cut", "auto", False).state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in cut.state_dict().items())
