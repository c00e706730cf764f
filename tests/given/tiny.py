"""Tiny random models of every family with a tokenizer: real transformers classes throughout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from lamina.data.calibrations import Row, Sample

WORDS = [f"w{number}" for number in range(60)]
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<pad>"]
VOCABULARY = len(SPECIAL_TOKENS) + len(WORDS)

_TOKEN_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_COMMON: dict[str, Any] = {**_TOKEN_IDS, **_SIZES}
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
    "gpt2": {**_TOKEN_IDS, **_GPT2},
    "opt": {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "mixtral": {**_GATED, "num_local_experts": 2, "num_experts_per_tok": 1},
    "bitnet": _GATED,
    "falcon": {**_COMMON, "alibi": True, "new_decoder_architecture": False},
    "bloom": {**_TOKEN_IDS, "hidden_size": 32, "n_layer": 5, "n_head": 4},
}
FAMILIES = sorted(CONFIGS)
# One of each kind, for the tests of every day: ALiBi, windows and norms around a sub-layer,
# learned positions, the usual gated one, experts.
USUAL_FAMILIES = ("bloom", "gemma3_text", "gpt2", "llama", "mixtral")


def model(family: str = "llama", seed: int = 0, depth: int = 5, **changes: Any) -> PreTrainedModel:
    """A random model of `depth` layers in evaluation mode.

    Its weights are so large that each layer matters. `changes` replace keys of its configuration.
    """
    settings = dict(CONFIGS[family])
    depth_key = "n_layer" if "n_layer" in settings else "num_hidden_layers"
    settings[depth_key] = depth
    if "layer_types" in settings:
        settings["layer_types"] = (settings["layer_types"] * depth)[:depth]
    config = AutoConfig.for_model(family, **{**settings, **changes})

    torch.manual_seed(seed)
    # Attention as a load chooses it: SDPA, but eager for BLOOM and Gemma 2, which have no other.
    random_model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in random_model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return random_model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word; adds no BOS."""
    return PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer([*SPECIAL_TOKENS, *WORDS], "<unk>"),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def word_tokenizer(words: list[str], unknown_word: str) -> Tokenizer:
    token_ids = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(token_ids, unk_token=unknown_word))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def save_without_bos_and_eos(folder: Path, context_length: int) -> None:
    """A GPT-2 with learned positions and its tokenizer, without tokens that begin or end a text."""
    no_special_tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    gpt2 = model("gpt2", n_positions=context_length, **no_special_tokens)
    gpt2.save_pretrained(folder)
    words = word_tokenizer(["?", *WORDS], "?")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)


def tokens(rows: int = 3, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Random token ids (rows, length), no special tokens among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL_TOKENS), VOCABULARY, (rows, length), generator=generator)


@torch.no_grad()
def stream(
    model: PreTrainedModel, token_ids: torch.Tensor, layers: torch.nn.ModuleList
) -> list[torch.Tensor]:
    """The stream h_0 … h_L (rows, length, C) before each layer and after the last, by hooks."""
    boundaries: list[torch.Tensor] = []

    def keep_input(module: Any, args: Any, kwargs: Any) -> None:
        boundaries.append(args[0] if args else kwargs["hidden_states"])

    def keep_output(module: Any, args: Any, output: Any) -> None:
        boundaries.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_pre_hook(keep_input, with_kwargs=True) for layer in layers]
    handles.append(layers[-1].register_forward_hook(keep_output))
    model(input_ids=token_ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return boundaries


def samples(
    sequences: Sequence[Sequence[int]], kind: str = "text", context: int = 1
) -> list[Sample]:
    """Samples of one row each; the first `context` tokens of a sequence are its context."""
    calibration_samples = []
    for index, token_ids in enumerate(sequences):
        row = Row(tuple(token_ids[:context]), tuple(token_ids[context:]), len(token_ids))
        calibration_samples.append(Sample(index, kind, 0, (row,), str(index)))
    return calibration_samples
