"""Tiny GGUF files: a Llama whose weights are quantised here, and what they are worth again."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

HEADS, KV_HEADS, WIDTH, INNER, LAYERS, CONTEXT = 4, 2, 64, 96, 3, 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "Ċ Ċ", "Ġ Ġ", "i n", "Ġ 1", "1 2"]
TOKENS = [
    *SPECIAL,
    *sorted(bytes_to_unicode().values()),
    *("".join(merge.split()) for merge in MERGES),
]
KINDS = {
    "embedding": GGMLQuantizationType.Q8_0,
    "value": GGMLQuantizationType.F16,
    "other": GGMLQuantizationType.Q4_1,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def rotated(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection as GGUF has them: pairs that rotate together are neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def original(seed: int = 0) -> LlamaForCausalLM:
    """A random Llama with tied embeddings."""
    import torch

    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=len(TOKENS), hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS
    )
    sizes |= dict(
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT
    )
    told = dict(rope_theta=5000.0, rms_norm_eps=1e-5, tie_word_embeddings=True)
    config = LlamaConfig(**sizes, **told, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.uniform_(0.5, 1.5)
    return model


def header(path: Path, architecture: str, **told: Any) -> GGUFWriter:
    """A writer of a file, told its settings by the names of the writer's own methods."""
    writer = GGUFWriter(str(path), architecture)
    for name, value in told.items():
        getattr(writer, f"add_{name}")(value)
    return writer


def close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(
    path: Path, seed: int = 0, cut: str = "smollm", more: Any = None, flags: Any = None
) -> LlamaForCausalLM:
    """A GGUF file of `original(seed)`, and that model with the weights that quantising left.

    `cut` is the name of how its tokenizer cuts text, `more` are further settings (numbers, lists) and tensors (arrays),
    `flags` those of its tokenizer.
    """
    import torch

    model = original(seed)
    names = {
        "attn_norm": "input_layernorm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
    }
    names |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
    names |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    places = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    for layer in range(LAYERS):
        places |= {
            f"blk.{layer}.{a}.weight": f"model.layers.{layer}.{b}.weight" for a, b in names.items()
        }
    sizes = dict(
        block_count=LAYERS,
        context_length=CONTEXT,
        embedding_length=WIDTH,
        feed_forward_length=INNER,
    )
    sizes |= dict(
        head_count=HEADS,
        head_count_kv=KV_HEADS,
        vocab_size=len(TOKENS),
        rope_dimension_count=WIDTH // HEADS,
    )
    words = dict(tokenizer_model="gpt2", tokenizer_pre=cut, token_list=TOKENS, token_merges=MERGES)
    types = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL))
    told = dict(
        rope_freq_base=5000.0, layer_norm_rms_eps=1e-5, token_types=types, chat_template=TEMPLATE
    )
    writer = header(path, "llama", name="tiny", **sizes, **words, **told)
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": 2}
    for name, value in (special | {"add_bos_token": False} | (flags or {})).items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{name}", value)
    weights = model.state_dict()
    for name, place in places.items():
        weight = weights[place].numpy().copy()
        if "attn_q" in name or "attn_k" in name:
            weight = rotated(weight, HEADS if "attn_q" in name else KV_HEADS)
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
            continue
        kind = KINDS[
            "embedding" if name == "token_embd.weight" else "value" if "attn_v" in name else "other"
        ]
        packed = quants.quantize(weight, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        worth = quants.dequantize(packed, kind)
        if "attn_q" in name or "attn_k" in name:
            heads = HEADS if "attn_q" in name else KV_HEADS
            worth = worth.reshape(heads, -1, 2, worth.shape[1]).swapaxes(1, 2).reshape(worth.shape)
        with torch.no_grad():
            weights[place].copy_(torch.from_numpy(worth.copy()))
    for name, value in (more or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_float32(name, value)
    close(writer)
    return model


def true_tokenizer() -> Tokenizer:
    """The tokenizer as its authors would have it: digits one by one, then GPT-2's pieces, then the merges."""
    merges = [tuple(merge.split()) for merge in MERGES]
    built = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(TOKENS)}, merges=merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(SPECIAL)
    return built
