"""Tiny GGUF files: a Llama whose weights are quantised here, and what they are worth again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
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
FORMATS = {
    "embedding": GGMLQuantizationType.Q8_0,
    "value": GGMLQuantizationType.F16,
    "other": GGMLQuantizationType.Q4_1,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a file: its tokens with their types, and merges (byte-level) or scores (SentencePiece)."""

    tokens: list[str]
    types: list[int]
    merges: list[str] | None = None
    scores: list[float] | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of tokenizer by llama.cpp's name."""
        return "gpt2" if self.scores is None else "llama"


BYTE_LEVEL = Vocabulary(
    tokens=TOKENS,
    types=[TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL)),
    merges=MERGES,
    flags={
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
    },
)


def sentence_pieces(**flags: Any) -> Vocabulary:
    """A small vocabulary of SentencePiece as Llama 2 has it: bytes, letters, and words with a blank before them."""
    control = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = list("▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"-()é")
    pieces = ["▁▁", "▁▁▁▁", "th", "he", "▁t", "▁the", "in", "▁in", "▁1", "12", "he▁", "ll", "llo"]
    tokens = [*control, *in_bytes, *pieces, *letters, "<tool>"]
    ranked = [-float(rank) for rank in range(len(pieces) + len(letters))]
    return Vocabulary(
        tokens=tokens,
        types=[
            *(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL),
            *[TokenType.BYTE] * len(in_bytes),
            *[TokenType.NORMAL] * len(ranked),
            TokenType.USER_DEFINED,
        ],
        scores=[*[0.0] * (len(control) + len(in_bytes)), *ranked, 0.0],
        flags={"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **flags},
    )


def rotated(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection as GGUF has them: pairs that rotate together are neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def rotated_back(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a projection in the order of transformers again."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def original(seed: int = 0, n_tokens: int = len(TOKENS), tied: bool = True) -> LlamaForCausalLM:
    """A random Llama, by default with tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=n_tokens,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.uniform_(0.5, 1.5)
    return model


def header(path: Path, architecture: str, n_shards: int = 1, **settings: Any) -> GGUFWriter:
    """A writer of a file, with settings by the names of the writer's own methods."""
    most = -(-30 // n_shards) if n_shards > 1 else 0  # tensors in a shard
    writer = GGUFWriter(str(path), architecture, split_max_tensors=most)
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    return writer


def close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(
    path: Path,
    seed: int = 0,
    cut: str | None = "smollm",
    more: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    vocabulary: Vocabulary = BYTE_LEVEL,
    formats: Mapping[str, GGMLQuantizationType] = FORMATS,
    tied: bool = True,
    name: str | None = "tiny",
    kv_heads: int | list[int] = KV_HEADS,
    n_shards: int = 1,
) -> LlamaForCausalLM:
    """A GGUF file of `original(seed)`, and that model with the weights that quantising left.

    `cut` is the name of how its tokenizer cuts text, `more` are further settings (numbers, lists) and tensors (arrays),
    `flags` those of its tokenizer. `formats` are the number formats of the embedding, the values and other weights.
    With several shards, `path` is the name before the numbers of the shards are put into it.
    """
    model = original(seed, len(vocabulary.tokens), tied)
    optional = {"name": name, "tokenizer_pre": cut}
    writer = header(
        path,
        "llama",
        n_shards,
        **{key: value for key, value in optional.items() if value is not None},
        block_count=LAYERS,
        context_length=CONTEXT,
        embedding_length=WIDTH,
        feed_forward_length=INNER,
        head_count=HEADS,
        head_count_kv=kv_heads,
        vocab_size=len(vocabulary.tokens),
        rope_dimension_count=WIDTH // HEADS,
        rope_freq_base=5000.0,
        layer_norm_rms_eps=1e-5,
        tokenizer_model=vocabulary.kind,
        token_list=vocabulary.tokens,
        token_types=vocabulary.types,
        chat_template=TEMPLATE,
    )
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    for flag, value in {**vocabulary.flags, **(flags or {})}.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{flag}", value)
    _add_weights(writer, model, formats)
    for key, value in (more or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_float32(key, value)
    close(writer)
    return model


def _add_weights(
    writer: GGUFWriter, model: LlamaForCausalLM, formats: Mapping[str, GGMLQuantizationType]
) -> None:
    """Add the weights of a model to a file, and give the model those that their formats left."""
    weights = model.state_dict()
    for tensor_name, weight_name in _names(bool(model.config.tie_word_embeddings)).items():
        weight = weights[weight_name].numpy().copy()
        heads = HEADS if "attn_q" in tensor_name else KV_HEADS if "attn_k" in tensor_name else None
        if heads:
            weight = rotated(weight, heads)
        if weight.ndim == 1:
            writer.add_tensor(tensor_name, weight)
            continue
        use = "embedding" if tensor_name == "token_embd.weight" else "other"
        number_format = formats["value" if "attn_v" in tensor_name else use]
        packed = quants.quantize(weight, number_format)
        writer.add_tensor(tensor_name, packed, raw_dtype=number_format)
        worth = quants.dequantize(packed, number_format)
        if heads:
            worth = rotated_back(worth, heads)
        with torch.no_grad():
            weights[weight_name].copy_(torch.from_numpy(worth.copy()))


def _names(tied: bool) -> dict[str, str]:
    """The names that transformers has for the tensors of a file."""
    of_layer = {
        "attn_norm": "input_layernorm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
    }
    of_layer |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
    of_layer |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if not tied:
        names["output.weight"] = "lm_head.weight"
    for layer in range(LAYERS):
        for tensor_name, weight_name in of_layer.items():
            names[f"blk.{layer}.{tensor_name}.weight"] = (
                f"model.layers.{layer}.{weight_name}.weight"
            )
    return names


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
