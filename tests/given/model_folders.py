"""Folders of models as users have them: written, changed, and described as a run describes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.given import tiny

State = dict[str, torch.Tensor]


def save_model(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a tiny model with its tokenizer; returns the folder."""
    tiny.model(family, **changes).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Change entries of the folder's config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | changes))


def change_weights(folder: Path, change: Callable[[State], State]) -> None:
    """Write what `change` makes of the folder's tensors."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def manifest_of(folder: Path, source: str = "mine", **entries: Any) -> dict[str, Any]:
    """The entries of a model's manifest that loading it needs."""
    manifest = {
        "path": str(folder),
        "source": source,
        "dtype": "float32",
        "trust_remote_code": False,
    }
    return manifest | entries
