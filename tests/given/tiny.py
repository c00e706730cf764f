"""Tiny random models of every family, and a tokenizer to go with them; real transformers classes throughout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from lamina.data.calibrations import Row, Sample

WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = len(WORDS) + 4

_SPECIAL = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_COMMON: dict[str, Any] = {**_SPECIAL, **_SIZES}
_GATED = {**_COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
_HEAD = {**_GATED, "head_dim": 8}
_GEMMA = {**_HEAD, "sliding_window": 6, "query_pre_attn_scalar": 8}
_GPT2 = {"n_embd": 32, "n_layer": 5, "n_head": 4, "n_positions": 128}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _GATED,
    "mistral": {**_GATED, "sliding_window": 6},
    "qwen2": _GATED,
    "qwen3": _HEAD,
    "gemma2": _GEMMA,
    "gemma3_text": {**_GEMMA, "layer_types": (["sliding_attention", "full_attention"] * 3)[:5]},
    "phi3": _GATED,
    "olmo2": _GATED,
    "gpt_neox": {**_COMMON, "intermediate_size": 48},
    "gpt2": {**_SPECIAL, **_GPT2},
    "opt": {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "mixtral": {**_GATED, "num_local_experts": 2, "num_experts_per_tok": 1},
    "bitnet": _GATED,
    "falcon": {**_COMMON, "alibi": True, "new_decoder_architecture": False},
    "bloom": {**_SPECIAL, "hidden_size": 32, "n_layer": 5, "n_head": 4},
}
FAMILIES = sorted(CONFIGS)


def model(family: str = "llama", seed: int = 0, depth: int = 5, **changes: Any) -> PreTrainedModel:
    """A random model of `depth` layers in evaluation mode, its weights large enough that each layer matters."""
    torch.manual_seed(seed)
    settings = dict(CONFIGS[family])
    settings["n_layer" if "n_layer" in settings else "num_hidden_layers"] = depth
    if "layer_types" in settings:
        settings["layer_types"] = (settings["layer_types"] * depth)[:depth]
    config = AutoConfig.for_model(family, **{**settings, **changes})
    # Attention as a load gives it: SDPA, but eager for BLOOM and Gemma 2, which have nothing else.
    built = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return built.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word; adds no BOS."""
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    built = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate([*special, *WORDS])}, unk_token="<unk>")
    )
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def save_without_bos_and_eos(folder: Path, context: int) -> None:
    """A GPT-2 with learned positions and its tokenizer, one token per word and none that begins or ends a text."""
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model("gpt2", n_positions=context, **special).save_pretrained(folder)
    words = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(["?", *WORDS])}, unk_token="?")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)


def tokens(rows: int = 3, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Random token ids (rows, length)."""
    return torch.randint(
        4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed)
    )


@torch.no_grad()
def stream(
    built: PreTrainedModel, ids: torch.Tensor, layers: torch.nn.ModuleList
) -> list[torch.Tensor]:
    """h_0 … h_L (rows, length, C), the stream entering each layer and leaving the last, read off with hooks."""
    found: list[torch.Tensor] = []

    def entering(module: Any, args: Any, kwargs: Any) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])

    def leaving(module: Any, args: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_pre_hook(entering, with_kwargs=True) for layer in layers]
    handles.append(layers[-1].register_forward_hook(leaving))
    built(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def samples(
    sequences: Sequence[Sequence[int]], kind: str = "text", context: int = 1
) -> list[Sample]:
    """Samples of one row each, the first `context` tokens of a sequence being its context."""
    rows = [Row(tuple(ids[:context]), tuple(ids[context:]), len(ids)) for ids in sequences]
    return [Sample(number, kind, 0, (row,), str(number)) for number, row in enumerate(rows)]
