"""The check of an export: loaded back, it is the variant that it was written from, and generates the same."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.check import distance, logits, probe, tolerance
from lamina.models.structure import text_config

_FILLED = 5  # tokens that stand in front of a shorter prompt of a batch


def check_export(
    variant: PreTrainedModel, base: PreTrainedModel, load: Callable[[], PreTrainedModel]
) -> None:
    """Load an export back and refuse it if it is not the variant it was written from.

    Its logits must be the variant's. Generating with a cache must give what generating without one gives, if it does so
    for the unpruned `base`.

    Raises LaminaError, which says what differs, and by how much.
    """
    called = f"the export of this '{text_config(variant).model_type}'"
    differs = f"{called} does not load back as the same model"
    advice = (
        "Keep the variant as it is: lamina.load loads it, and every benchmark of lamina runs on it."
    )
    try:
        back = load()
    except Exception as error:  # a family's code can raise anything
        raise LaminaError(f"{differs}: {error} {advice}") from error
    back = torch.nn.Module.to(back, variant.device)
    ids, most = probe(variant), tolerance(variant)
    far = distance(logits(back, ids, len(ids)), logits(variant, ids, len(ids)), variant.dtype)
    if far > most:
        raise LaminaError(
            f"{differs}: its logits would be off by {far:.2g} of their spread. Layers of this family compute with "
            f"their number or with the depth, or its configuration cannot say which layers are left. {advice}"
        )
    check_cache(back, base, called, advice)


def check_cache(
    variant: PreTrainedModel, base: PreTrainedModel, called: str, advice: str = ""
) -> None:
    """Refuse a variant that generates other text from a cache than without one, where the unpruned model does not.

    Raises LaminaError, which says by how much.
    """
    ids, most = probe(variant), tolerance(variant)
    for filled in (0, _FILLED):
        far = _cache_error(variant, ids, filled)
        if far > most >= _cache_error(base, ids, filled):
            beside = " beside a longer prompt" if filled else ""
            apart = f"its logits would be {far:.2g} of their spread apart"
            text = f"other text from a cache than without one{beside}: {apart}"
            fault = text if far < torch.inf else "nothing from a cache"
            said = (
                f"{called} would generate {fault}, which the unpruned model does not do. {advice}"
            )
            raise LaminaError(said.rstrip())


@torch.inference_mode()
def _cache_error(model: PreTrainedModel, ids: Sequence[int], filled: int) -> float:
    """The `distance` of logits of tokens generated from a cache from those of the whole text; infinite without one.

    filled: By how many tokens the text is shorter than another one of its batch, and filled up in front; 0 if alone.
    """
    row, before = (
        torch.tensor([ids, ids] if filled else [ids], device=model.device),
        model.generation_config,
    )
    mask = torch.ones_like(row)
    mask[-1, :filled] = 0
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    try:
        generator: Any = model
        generated = generator.generate(
            row, output_logits=True, return_dict_in_generate=True, **options
        )
    except Exception:  # a family's code can raise anything
        return torch.inf
    finally:
        model.generation_config = before
    text = generated.sequences[-1, filled:].tolist()
    found = torch.stack([step[-1] for step in generated.logits])
    return distance(found, logits(model, text[:-1], 4), model.dtype)
