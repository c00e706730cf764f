"""Checks that an export, loaded back, is the variant that it was written from.

It must give the same logits and generate the same text.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.check import dtype_tolerance, last_logits, logit_distance, probe_sequence
from lamina.models.structure import text_config

N_GENERATED = 4  # tokens
N_PADDING = 5  # tokens in front of the shorter prompt of a batch


def check_export(
    variant: PreTrainedModel, base: PreTrainedModel, load: Callable[[], PreTrainedModel]
) -> None:
    """Load an export back and refuse it if it is not the variant it was written from.

    Its logits must be the variant's. Generation with a cache must match generation without one, if
    it does so for the unpruned `base`.

    Raises LaminaError that says what differs, and by how much.
    """
    subject = f"the export of this '{text_config(variant).model_type}'"
    refusal = f"{subject} does not load back as the same model"
    advice = (
        "Keep the variant as it is: lamina.load loads it, and every benchmark of lamina runs on it."
    )
    try:
        loaded = load()
    except Exception as error:  # a family's code can raise anything
        raise LaminaError(f"{refusal}: {error} {advice}") from error
    loaded = torch.nn.Module.to(loaded, variant.device)

    token_ids = probe_sequence(variant)
    loaded_logits = last_logits(loaded, token_ids, len(token_ids))
    variant_logits = last_logits(variant, token_ids, len(token_ids))
    difference = logit_distance(loaded_logits, variant_logits, variant.dtype)
    if difference > dtype_tolerance(variant):
        raise LaminaError(
            f"{refusal}: its logits would be off by {difference:.2g} of their spread. Layers of "
            "this family depend on their index or on the depth, or its config.json cannot say "
            f"which layers are left. {advice}"
        )
    check_cache(loaded, base, subject, advice)


def check_cache(
    variant: PreTrainedModel, base: PreTrainedModel, subject: str, advice: str = ""
) -> None:
    """Refuse a variant that generates other text with a cache than without, if `base` does not.

    subject, advice: how the error names the variant, and what it recommends.

    Raises LaminaError that says how much the logits differ.
    """
    token_ids = probe_sequence(variant)
    limit = dtype_tolerance(variant)
    for n_padding in (0, N_PADDING):
        error = _cache_error(variant, token_ids, n_padding)
        if error > limit and _cache_error(base, token_ids, n_padding) <= limit:
            fault = _describe_cache_fault(error, n_padding)
            message = f"{subject} would generate {fault}, which the unpruned model does not do."
            raise LaminaError(f"{message} {advice}".rstrip())


def _describe_cache_fault(error: float, n_padding: int) -> str:
    """Describe what a variant generates from a cache, given its `_cache_error`."""
    if error == torch.inf:
        return "nothing with a cache"
    batch = " in a batch with a longer prompt" if n_padding else ""
    return (
        f"other text with a cache than without one{batch} (its logits would differ by "
        f"{error:.2g} of their spread)"
    )


@torch.inference_mode()
def _cache_error(model: PreTrainedModel, token_ids: Sequence[int], n_padding: int) -> float:
    """How far the logits of tokens generated from a cache are from those of the whole text.

    A `logit_distance`; infinite if nothing can be generated.

    n_padding: how many padding tokens stand before the text in a batch with a longer one; 0 if it
        is alone.
    """
    rows = [token_ids, token_ids] if n_padding else [token_ids]
    input_ids = torch.tensor(rows, device=model.device)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[-1, :n_padding] = 0

    own_generation_config = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    try:
        generator: Any = model
        generated = generator.generate(
            input_ids,
            attention_mask=attention_mask,
            max_new_tokens=N_GENERATED,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    except Exception:  # a family's code can raise anything
        return torch.inf
    finally:
        model.generation_config = own_generation_config

    text = generated.sequences[-1, n_padding:].tolist()
    cached_logits = torch.stack([step_logits[-1] for step_logits in generated.logits])
    return logit_distance(cached_logits, last_logits(model, text[:-1], N_GENERATED), model.dtype)
