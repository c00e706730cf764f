"""Loading a model described by a manifest, and the one place where device and dtype are decided."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lamina.errors import LaminaError

transformers_logging.disable_progress_bar()


def device() -> torch.device:
    """The first visible GPU, else the CPU. Which GPUs are visible is the scheduler's business."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def load_model(manifest: dict[str, Any], on: torch.device | None = None) -> PreTrainedModel:
    """The model in evaluation mode on `on` (default: `device()`), in the manifest's dtype, from safetensors only.

    Raises
    ------
    LaminaError
        If transformers cannot build the model from its folder.
    """
    dtype = manifest["dtype"]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            manifest["path"],
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=manifest["trust_remote_code"],
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise LaminaError(f"the model '{manifest['source']}' in {manifest['path']} does not load: {error}") from error
    torch.nn.Module.to(model, on if on is not None else device())
    return model.eval()


def load_tokenizer(manifest: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer beside the model's weights.

    Raises
    ------
    LaminaError
        If the folder holds none that transformers can load.
    """
    try:
        return AutoTokenizer.from_pretrained(
            manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise LaminaError(
            f"the model '{manifest['source']}' has no tokenizer that loads ({error}). Put tokenizer.json and "
            "tokenizer_config.json beside its weights."
        ) from error


def load_skeleton(manifest: dict[str, Any]) -> PreTrainedModel:
    """The model's architecture with no weights (meta tensors), enough for lm-eval to know its context length."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=manifest["trust_remote_code"])
