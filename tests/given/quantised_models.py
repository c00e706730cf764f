"""Folders of quantised models, and what their weights are worth by definition of the formats."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.families import configurations
from tests.given import tiny
from tests.given.model_folders import State, change_config

BLOCK = 16
# The values of E2M1 in the order of its bits.
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def write_quantised(folder: Path, state: State, quantisation: dict[str, Any]) -> None:
    """Write tensors as those of a quantised model."""
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, quantization_config=quantisation)


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix in FP8 with a scale for each block: its stored values, its scales, its worth."""
    n_rows, n_columns = weight.shape
    blocks = weight.reshape(n_rows // BLOCK, BLOCK, n_columns // BLOCK, BLOCK)
    scales = blocks.abs().amax((1, 3)) / 448
    block_scales = scales[:, None, :, None]
    stored = (blocks / block_scales).to(torch.float8_e4m3fn)
    worth = stored.float() * block_scales
    return stored.reshape(weight.shape), scales, worth.reshape(weight.shape)


def fp8(folder: Path) -> State:
    """Write a Llama whose projections are FP8 in blocks; returns what its weights are worth."""
    tiny.model().save_pretrained(folder)
    stored_state = State()
    worth_state = State()
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            stored_state[name] = weight
            worth_state[name] = weight
            continue
        stored, scales, worth = quantise_blocks(weight)
        stored_state[name] = stored
        stored_state[f"{name}_scale_inv"] = scales
        worth_state[name] = worth
    quantisation = {
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
        "activation_scheme": "dynamic",
    }
    write_quantised(folder, stored_state, quantisation)
    return worth_state


def mxfp4(folder: Path) -> State:
    """Write a gpt-oss whose experts are 4-bit pairs; returns what its weights are worth.

    Each 32 numbers of a row share an exponent.
    """
    sizes = {"intermediate_size": 64, "hidden_size": 64, "head_dim": 16, "num_local_experts": 2}
    configurations.model("gpt_oss", **sizes).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    stored_state = State()
    worth_state = State()
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj") or weight.dim() != 3:
            stored_state[name] = weight
            worth_state[name] = weight
            continue
        n_experts, n_inputs, n_outputs = weight.shape
        pair_shape = (n_experts, n_outputs, n_inputs // 32, 16)
        scale_shape = (n_experts, n_outputs, n_inputs // 32)
        pairs = torch.randint(0, 256, pair_shape, generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 128, scale_shape, generator=generator, dtype=torch.uint8)
        stored_state[f"{name}_blocks"] = pairs
        stored_state[f"{name}_scales"] = scales
        low_values = FP4[(pairs & 15).long()]
        high_values = FP4[(pairs >> 4).long()]
        values = torch.stack([low_values, high_values], -1).flatten(-2)
        exponents = scales.float() - 127
        rows = values * torch.exp2(exponents)[..., None]
        worth = rows.reshape(n_experts, n_outputs, n_inputs).transpose(1, 2)
        worth_state[name] = worth.contiguous()
    quantisation = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    write_quantised(folder, stored_state, quantisation)
    return worth_state


def bitsandbytes(folder: Path) -> State:
    """Write a Llama in 4 bits as transformers does; returns what its weights are worth."""
    functional = pytest.importorskip("bitsandbytes.functional")
    full_folder = folder.with_name("full")
    tiny.model(hidden_size=64, intermediate_size=64, head_dim=16).save_pretrained(full_folder)
    options = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    model = AutoModelForCausalLM.from_pretrained(
        full_folder, quantization_config=options, dtype=torch.float32
    )
    model.save_pretrained(folder)

    worth_state = load_file(full_folder / "model.safetensors")
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            weight = module.weight
            quant_state = weight.quant_state
            worth_state[f"{name}.weight"] = functional.dequantize_4bit(weight.data, quant_state)
    return worth_state
