"""Tiny GGUF files of a random Llama, and that Llama with what quantising left of its weights."""

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

HEADS = 4
KV_HEADS = 2
WIDTH = 64
INNER = 96
LAYERS = 3
CONTEXT = 256
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
    """The tokenizer of a file: its tokens with their types and what joins them.

    Byte-level ones have merges, those of SentencePiece have scores.
    """

    tokens: list[str]
    types: list[int]
    merges: list[str] | None = None
    scores: list[float] | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of tokenizer, as llama.cpp calls it."""
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
    """A small vocabulary of SentencePiece as Llama 2 has it.

    It has bytes, letters, and words with a blank before them.
    """
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = list("▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"-()é")
    pieces = ["▁▁", "▁▁▁▁", "th", "he", "▁t", "▁the", "in", "▁in", "▁1", "12", "he▁", "ll", "llo"]
    n_ranked = len(pieces) + len(letters)

    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * len(byte_tokens)
    types += [TokenType.NORMAL] * n_ranked
    types += [TokenType.USER_DEFINED]
    scores = [0.0] * (len(special) + len(byte_tokens))
    scores += [-float(rank) for rank in range(n_ranked)]
    scores += [0.0]
    return Vocabulary(
        tokens=[*special, *byte_tokens, *pieces, *letters, "<tool>"],
        types=types,
        scores=scores,
        flags={"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **flags},
    )


def interleave_rotary_rows(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of GGUF: pairs that rotate are neighbours."""
    pairs_apart = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return pairs_apart.swapaxes(1, 2).reshape(weight.shape)


def split_rotary_rows(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """The rows of a projection in the order of transformers: its inverse."""
    pairs_together = weight.reshape(n_heads, -1, 2, weight.shape[1])
    return pairs_together.swapaxes(1, 2).reshape(weight.shape)


def random_llama(seed: int = 0, n_tokens: int = len(TOKENS), tied: bool = True) -> LlamaForCausalLM:
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


def open_writer(path: Path, architecture: str, n_shards: int = 1, **settings: Any) -> GGUFWriter:
    """A writer of a file, with settings by the names of the writer's own methods."""
    n_tensors_of_file = 30
    tensors_per_shard = -(-n_tensors_of_file // n_shards) if n_shards > 1 else 0
    writer = GGUFWriter(str(path), architecture, split_max_tensors=tensors_per_shard)
    for name, value in settings.items():
        add_setting = getattr(writer, f"add_{name}")
        add_setting(value)
    return writer


def close(writer: GGUFWriter) -> None:
    """Write what a writer was given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(
    path: Path,
    seed: int = 0,
    pre_tokenizer: str | None = "smollm",
    extra_fields: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    vocabulary: Vocabulary = BYTE_LEVEL,
    formats: Mapping[str, GGMLQuantizationType] = FORMATS,
    tied: bool = True,
    name: str | None = "tiny",
    kv_heads: int | list[int] = KV_HEADS,
    n_shards: int = 1,
) -> LlamaForCausalLM:
    """Write `random_llama(seed)` as GGUF, and return it with the weights that quantising left.

    `pre_tokenizer` names how the tokenizer splits text, `flags` are further settings of it, and
    `extra_fields` are further settings (numbers, lists, strings) and tensors (arrays) of the file.
    `formats` are the number formats of the embedding, the values and all other weights. With
    several shards, `path` is the name into which their numbers are put.
    """
    model = random_llama(seed, len(vocabulary.tokens), tied)
    optional_settings = {}
    if name is not None:
        optional_settings["name"] = name
    if pre_tokenizer is not None:
        optional_settings["tokenizer_pre"] = pre_tokenizer
    writer = open_writer(
        path,
        "llama",
        n_shards,
        **optional_settings,
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
        add_flag = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add_flag(f"tokenizer.ggml.{flag}", value)
    _add_weights(writer, model, formats)
    for key, value in (extra_fields or {}).items():
        _add_field(writer, key, value)
    close(writer)
    return model


def _add_field(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        writer.add_tensor(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_float32(key, value)


def _add_weights(
    writer: GGUFWriter, model: LlamaForCausalLM, formats: Mapping[str, GGMLQuantizationType]
) -> None:
    """Add the weights of a model to a file, and give the model what their formats left of them."""
    weights = model.state_dict()
    weight_names = _weight_names(bool(model.config.tie_word_embeddings))
    for tensor_name, weight_name in weight_names.items():
        weight = weights[weight_name].numpy().copy()
        if weight.ndim == 1:
            writer.add_tensor(tensor_name, weight)
            continue

        n_heads = _n_rotary_heads(tensor_name)
        if n_heads:
            weight = interleave_rotary_rows(weight, n_heads)
        number_format = formats[_format_role(tensor_name)]
        quantised = quants.quantize(weight, number_format)
        writer.add_tensor(tensor_name, quantised, raw_dtype=number_format)

        remaining = quants.dequantize(quantised, number_format)
        if n_heads:
            remaining = split_rotary_rows(remaining, n_heads)
        with torch.no_grad():
            weights[weight_name].copy_(torch.from_numpy(remaining.copy()))


def _n_rotary_heads(tensor_name: str) -> int | None:
    """The heads of a projection that rotates with the position; None if it does not."""
    if "attn_q" in tensor_name:
        return HEADS
    if "attn_k" in tensor_name:
        return KV_HEADS
    return None


def _format_role(tensor_name: str) -> str:
    """Which of the `formats` a tensor has."""
    if tensor_name == "token_embd.weight":
        return "embedding"
    return "value" if "attn_v" in tensor_name else "other"


def _weight_names(tied: bool) -> dict[str, str]:
    """The names in transformers of the tensors of a file."""
    names_in_layer = {
        "attn_norm": "input_layernorm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
    }
    names_in_layer |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
    names_in_layer |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}

    weight_names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if not tied:
        weight_names["output.weight"] = "lm_head.weight"
    for layer_index in range(LAYERS):
        for tensor_name, module_name in names_in_layer.items():
            in_file = f"blk.{layer_index}.{tensor_name}.weight"
            weight_names[in_file] = f"model.layers.{layer_index}.{module_name}.weight"
    return weight_names


def expected_tokenizer() -> Tokenizer:
    """The tokenizer as its authors have it: single digits, then GPT-2's pieces, then the merges."""
    token_ids = {token: token_id for token_id, token in enumerate(TOKENS)}
    merges = [tuple(merge.split()) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=token_ids, merges=merges))
    single_digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([single_digits, gpt2_pieces])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
