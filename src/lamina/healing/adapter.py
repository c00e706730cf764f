"""Writes the two files of a healing, as PEFT names and reads them.

`adapter_model.safetensors` holds the trained tensors, `adapter_config.json` what PEFT needs to know
about them. `lamina.models.adapters` reads both.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lamina.models.adapters import CONFIG_SHA256_KEY, TARGETS_KEY
from lamina.store import parquet

# The configuration of an adapter without low-rank updates: with it, PEFT changes nothing.
CONFIG_WITHOUT_UPDATES: Mapping[str, Any] = {
    "peft_type": "LORA",
    "target_modules": [],
    "base_model_name_or_path": None,
}


def write_adapter(
    folder: str | Path,
    weights: Mapping[str, torch.Tensor],
    adapter_config: Mapping[str, Any],
    targets: str,
) -> None:
    """Write the trained tensors and PEFT's configuration.

    weights: the trained tensors, by PEFT's name of an update, or the name of the variant's
        parameter or buffer.
    adapter_config: the content of adapter_config.json.
    targets: which modules the tensors belong to, as in `adapters.find_adaptable`.
    """
    folder = Path(folder)
    config_text = json.dumps(adapter_config, indent=2, sort_keys=True, default=str) + "\n"
    parquet.write_text(folder / "adapter_config.json", config_text)

    tensors = {
        f"base_model.model.{name}": weight.detach().cpu().contiguous()
        for name, weight in weights.items()
    }
    # PEFT refuses keys that it does not know, so the checksum of its file is kept with the tensors.
    config_sha256 = hashlib.sha256(config_text.encode()).hexdigest()
    metadata = {TARGETS_KEY: targets, CONFIG_SHA256_KEY: config_sha256}
    parquet.write_tensors(folder / "adapter_model.safetensors", tensors, metadata)


def write_empty_adapter(folder: str | Path) -> None:
    """Write the files for a variant that was not trained because its plan was refused."""
    write_adapter(folder, {}, CONFIG_WITHOUT_UPDATES, "none")
