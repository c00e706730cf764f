"""llama.cpp itself, by the package cyllama, and tiny models written as its converter writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.models.export import gguf_file, save
from tests.families.test_families import base_folder, source_of
from tests.given import gguf_files, tiny

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma3_text": MODEL_ARCH.GEMMA3,
}


def convert(model: PreTrainedModel, path: Path) -> None:
    """A model of one of `ARCHITECTURES` as a GGUF file in float32 without a tokenizer.

    As convert_hf_to_gguf.py does it: the file has the width of a sliding window, and not the layers that have one.
    """
    config = model.config
    family = ARCHITECTURES[config.model_type]
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope: Any = config.rope_parameters
    told = {
        **dict(block_count=config.num_hidden_layers, context_length=config.max_position_embeddings),
        **dict(embedding_length=config.hidden_size, feed_forward_length=config.intermediate_size),
        **dict(head_count=config.num_attention_heads, head_count_kv=config.num_key_value_heads),
        **dict(
            key_length=head,
            value_length=head,
            rope_dimension_count=head,
            vocab_size=config.vocab_size,
        ),
        **dict(
            rope_freq_base=rope.get("full_attention", rope)["rope_theta"],
            layer_norm_rms_eps=config.rms_norm_eps,
        ),
    }
    writer = gguf_files.header(path, MODEL_ARCH_NAMES[family], **told, tokenizer_model="none")
    if family == MODEL_ARCH.GEMMA3:
        writer.add_sliding_window(config.sliding_window)
    names = get_tensor_name_map(family, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy().copy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if family == MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            weight = gguf_files.rotated(
                weight,
                config.num_attention_heads if "q_proj" in name else config.num_key_value_heads,
            )
        if family == MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            weight = weight + 1
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place, name
        writer.add_tensor(place, weight)
    gguf_files.close(writer)


def load_model(path: Path) -> Any:
    """The model in a GGUF file, or in shards of which this is the first, as llama.cpp has it."""
    from cyllama.llama import llama_cpp

    class Model(llama_cpp.LlamaModel):  # type: ignore[misc, name-defined]
        """The package asks the model for what its vocabulary has."""

        n_vocab = property(lambda self: self.get_vocab().n_vocab)

    llama_cpp.disable_logging()
    return Model(str(path), llama_cpp.LlamaModelParams())


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """The tokens that llama.cpp makes of texts, special tokens among them."""
    model = load_model(path)  # which owns the vocabulary
    vocabulary = model.get_vocab()
    return [list(vocabulary.tokenize(text, True, True)) for text in texts]


def log_probabilities(path: Path, rows: torch.Tensor) -> np.ndarray:
    """What llama.cpp expects behind the last token of each row: log-probabilities (rows, vocabulary)."""
    from cyllama.llama import llama_cpp

    model = load_model(path)
    found = []
    for row in rows.tolist():
        params = llama_cpp.LlamaContextParams()
        params.n_ctx = params.n_batch = 256
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = params.flash_attn_type = 0  # a cache in float32
        context = llama_cpp.LlamaContext(model, params)
        assert context.decode(llama_cpp.llama_batch_get_one(row)) == 0
        found.append(context.get_logits_ith(-1))
    return torch.tensor(found).double().log_softmax(-1).numpy()


@torch.no_grad()
def expected(model: PreTrainedModel, rows: torch.Tensor) -> np.ndarray:
    """The same of transformers."""
    return model(input_ids=rows, use_cache=False).logits[:, -1].double().log_softmax(-1).numpy()


PERIOD = ["sliding_attention"] * 5 + ["full_attention"]
DEPTH = 13
# What is removed, and whether the layers that stay are of the kinds that their new numbers have.
CASES: list[tuple[str, list[str], bool]] = [
    ("llama", ["2", "5", "6"], True),
    ("qwen3", ["2", "5", "6"], True),
    ("gemma3_text", ["3", "4", "5", "6", "7", "8"], True),
    ("gemma3_text", ["11", "12"], True),
    ("gemma3_text", ["3"], False),
    ("gemma3_text", ["4", "5", "6"], False),
]


def base_model(family: str) -> PreTrainedModel:
    """A tiny random model of `DEPTH` layers; Gemma 3 with the pattern that its real models have."""
    changes = {"layer_types": (PERIOD * DEPTH)[:DEPTH]} if family == "gemma3_text" else {}
    return tiny.model(family, depth=DEPTH, **changes)


def differences(family: str, units: list[str], folder: Path) -> tuple[float, float, float]:
    """The largest difference of log-probabilities between llama.cpp and transformers, over 16 rows of 48 tokens.

    Of the base model, of the cut model's export when it is converted, and of the base model's file without the layers.
    """
    base, rows = base_model(family), tiny.tokens(rows=16, length=48)
    save.export_variant(base, source_of(base_folder(folder / "base"), units), folder / "export")
    cut = AutoModelForCausalLM.from_pretrained(folder / "export")
    convert(base, folder / "base.gguf")
    convert(cut, folder / "cut.gguf")
    kept = [layer for layer in range(DEPTH) if str(layer) not in units]
    gguf_file.copy_layers(folder / "base.gguf", folder / "taken.gguf", kept)

    def far(file: str, model: PreTrainedModel) -> float:
        return float(np.abs(log_probabilities(folder / file, rows) - expected(model, rows)).max())

    return far("base.gguf", base), far("cut.gguf", cut), far("taken.gguf", cut)


def quantised_differences(folder: Path) -> tuple[float, float]:
    """The same of a quantised file (Q4_1, Q8_0, F16) and of that file without a layer.

    llama.cpp rounds what it multiplies with quantised weights to 8 bits, so neither is small.
    """
    rows = torch.randint(
        3, len(gguf_files.TOKENS), (16, 48), generator=torch.Generator().manual_seed(0)
    )
    base = gguf_files.write(folder / "base.gguf")
    gguf_file.copy_layers(folder / "base.gguf", folder / "cut.gguf", [0, 2])
    whole = np.abs(log_probabilities(folder / "base.gguf", rows) - expected(base, rows)).max()
    del base.model.layers[1]
    return float(whole), float(
        np.abs(log_probabilities(folder / "cut.gguf", rows) - expected(base, rows)).max()
    )
