"""How many tokens a model sees at once. The configuration uses this module too, so it does not import torch."""

from collections.abc import Mapping
from typing import Any

from lamina.errors import LaminaError

_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")  # in the order of lm-eval


def context(settings: Mapping[str, Any]) -> int | None:
    """The context, in tokens, that the settings in a config.json state; None if they state none (ALiBi needs none)."""
    text = settings.get("text_config") or settings  # multimodal checkpoints nest the decoder's settings
    limit = next((text[key] for key in _KEYS if text.get(key) is not None), None)
    return limit if isinstance(limit, int) else None


def check_fits(where: str, tokens: int, limit: int | None, model: str) -> None:
    """Refuse a number of tokens, given under the key `where`, that is more than the context `limit` of a model."""
    if limit is not None and tokens > limit:
        raise LaminaError(
            f"{where}: {tokens} tokens are more than the context of model '{model}', {limit}. Write at most {limit}, "
            "or leave the model out of the studies that use it."
        )


def check_generation(prompt: int, generate: int, limit: int | None, model: str) -> None:
    """Refuse a measurement of efficiency whose prompt and generated tokens are more than the context of a model."""
    if limit is not None and prompt + generate > limit:
        room = min(generate, limit // 2)
        raise LaminaError(
            f"benchmarks.efficiency: a prompt of {prompt} and {generate} generated tokens are more than the context of "
            f"model '{model}', {limit}. Write `efficiency: {{prompt: {limit - room}, generate: {room}}}`."
        )
