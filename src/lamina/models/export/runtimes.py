"""Which programs load an export as it is: transformers without code, vLLM, llama.cpp.

The facts were tested, or read from source code: reports/runtimes.md. The report of a study uses
this module before anything is exported, so it does not import torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RUNTIMES = ("transformers", "vllm", "llama.cpp")
# Decoders whose windows, positions and experts vLLM 0.33 takes from lists and counts.
VLLM_LISTS = frozenset(
    "afmoe apertus cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 exaone4 exaone_moe gemma2 "
    "gemma3_text gemma4_text gemma4_unified_text glm4_moe granite_swa granitemoe_swa "
    "granitemoehybrid laguna lfm2 lfm2_moe llama ministral3 mistral nemotron_h olmo3 olmo_hybrid "
    "qwen2_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next smollm3 vaultgemma".split()
)


@dataclass(frozen=True)
class ExportTraits:
    """What decides where an export loads."""

    decoder: str
    """The `model_type` of the decoder."""
    has_code: bool
    """Whether the export has its own code, which applies patches to the stream."""
    shifts_kinds: bool
    """Whether some layer differs in kind from the base model's layer at the same index."""
    lacks_attention: bool
    """Whether a layer lacks its attention. A stock export keeps it there with zero weights."""
    runs_code_in_vllm: bool
    """Whether vLLM can run an export of this base model that has code."""


def list_runtimes(traits: ExportTraits) -> tuple[str, ...]:
    """The programs that load an export of these traits and compute what transformers does."""
    if traits.has_code:
        is_run_by_vllm = traits.runs_code_in_vllm and not traits.lacks_attention
        return ("vllm",) if is_run_by_vllm else ()
    if not traits.shifts_kinds:
        return RUNTIMES
    # llama.cpp, and vLLM for most families, derive a layer's kind from its index.
    if traits.decoder in VLLM_LISTS:
        return ("transformers", "vllm")
    return ("transformers",)


def explain_vllm_obstacle(model: "PreTrainedModel") -> str:
    """Why the Transformers backend of vLLM cannot run a model's `code` export; empty if it can.

    The rules were read from the source of vLLM.
    """
    from lamina.models.structure import text_config

    config = text_config(model)
    if config is not model.config:
        return "Code beside a model that sees or hears was not tried there."
    # gpt2 claims to be compatible, but its attention fails there on the shape of its queries.
    if not model.is_backend_compatible() or config.model_type == "gpt2":
        return (
            "The attention of this family is not called in the way that vLLM's Transformers "
            "backend replaces."
        )
    layer_types = set(getattr(config, "layer_types", None) or ())
    unknown_types = layer_types - {"full_attention", "sliding_attention"}
    if unknown_types:
        return (
            "vLLM's Transformers backend knows full and sliding attention, and not "
            f"{min(unknown_types)}."
        )
    return ""
