"""llama.cpp itself, by the package cyllama, and tiny models as its converter writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.models.export import gguf_file, save
from lamina.models.surgery import source_layers
from tests.given import gguf_files, tiny
from tests.given.variants import base_folder, source_of

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma3_text": MODEL_ARCH.GEMMA3,
}
DEPTH = 13
# Gemma 3 has one layer with full attention after five with a sliding window.
PERIOD = ["sliding_attention"] * 5 + ["full_attention"]
# Family, edits, and whether each remaining layer has the kind of attention that llama.cpp
# gives to its new index.
CASES: list[tuple[str, list[str], bool]] = [
    ("llama", ["2", "5", "6"], True),
    ("qwen3", ["2", "5", "6"], True),
    ("gemma3_text", ["3", "4", "5", "6", "7", "8"], True),
    ("gemma3_text", ["11", "12"], True),
    ("gemma3_text", ["3"], False),
    ("gemma3_text", ["4", "5", "6"], False),
    ("llama", ["2-4x2", "7<>9"], True),
    ("qwen3", ["3", "5x3", "8-9x2"], True),
    ("gemma3_text", ["0-5x2"], True),
    ("gemma3_text", ["2x2"], False),
]


def convert(model: PreTrainedModel, path: Path) -> None:
    """Write a model of one of `ARCHITECTURES` as GGUF in float32, without a tokenizer.

    As convert_hf_to_gguf.py does: the file has the width of a sliding window, but does not say
    which layers have one.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    head_size = getattr(config, "head_dim", None)
    if not head_size:
        head_size = config.hidden_size // config.num_attention_heads
    rope: Any = config.rope_parameters
    writer = gguf_files.open_writer(
        path,
        MODEL_ARCH_NAMES[architecture],
        block_count=config.num_hidden_layers,
        context_length=config.max_position_embeddings,
        embedding_length=config.hidden_size,
        feed_forward_length=config.intermediate_size,
        head_count=config.num_attention_heads,
        head_count_kv=config.num_key_value_heads,
        key_length=head_size,
        value_length=head_size,
        rope_dimension_count=head_size,
        vocab_size=config.vocab_size,
        rope_freq_base=rope.get("full_attention", rope)["rope_theta"],
        layer_norm_rms_eps=config.rms_norm_eps,
        tokenizer_model="none",
    )
    if architecture == MODEL_ARCH.GEMMA3:
        writer.add_sliding_window(config.sliding_window)

    tensor_names = get_tensor_name_map(architecture, config.num_hidden_layers)
    for weight_name, weight in model.state_dict().items():
        if weight_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        tensor_name = tensor_names.get_name(weight_name, try_suffixes=(".weight", ".bias"))
        assert tensor_name, weight_name
        writer.add_tensor(tensor_name, converted_weight(model, weight_name, weight))
    gguf_files.close(writer)


def converted_weight(model: PreTrainedModel, weight_name: str, weight: torch.Tensor) -> np.ndarray:
    """A weight as the converter writes it."""
    config = model.config
    converted = weight.numpy().copy()
    architecture = ARCHITECTURES[config.model_type]
    if architecture == MODEL_ARCH.LLAMA and "q_proj" in weight_name:
        return gguf_files.interleave_rotary_rows(converted, config.num_attention_heads)
    if architecture == MODEL_ARCH.LLAMA and "k_proj" in weight_name:
        return gguf_files.interleave_rotary_rows(converted, config.num_key_value_heads)
    if architecture == MODEL_ARCH.GEMMA3 and weight_name.endswith("norm.weight"):
        return converted + 1
    return converted


def load_model(path: Path) -> Any:
    """llama.cpp's model of a GGUF file, or of the shards of which this is the first."""
    from cyllama.llama import llama_cpp

    class Model(llama_cpp.LlamaModel):  # type: ignore[misc, name-defined]
        """The package asks the model for the size that its vocabulary has."""

        n_vocab = property(lambda self: self.get_vocab().n_vocab)

    llama_cpp.disable_logging()
    return Model(str(path), llama_cpp.LlamaModelParams())


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """llama.cpp's tokens of texts, special tokens among them."""
    model = load_model(path)  # owns the vocabulary, so it must live as long
    vocabulary = model.get_vocab()
    return [list(vocabulary.tokenize(text, True, True)) for text in texts]


def log_probabilities(path: Path, rows: torch.Tensor) -> np.ndarray:
    """llama.cpp's log-probabilities (rows, vocabulary) of what follows each row of tokens."""
    from cyllama.llama import llama_cpp

    model = load_model(path)
    logits = []
    for row in rows.tolist():
        params = llama_cpp.LlamaContextParams()
        params.n_ctx = params.n_batch = 256
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = params.flash_attn_type = 0  # a cache in float32
        context = llama_cpp.LlamaContext(model, params)
        assert context.decode(llama_cpp.llama_batch_get_one(row)) == 0
        logits.append(context.get_logits_ith(-1))
    return torch.tensor(logits).double().log_softmax(-1).numpy()


@torch.no_grad()
def transformers_log_probabilities(model: PreTrainedModel, rows: torch.Tensor) -> np.ndarray:
    """The same of transformers."""
    logits = model(input_ids=rows, use_cache=False).logits[:, -1]
    return logits.double().log_softmax(-1).numpy()


def largest_difference(path: Path, model: PreTrainedModel, rows: torch.Tensor) -> float:
    """Between llama.cpp's log-probabilities and those of transformers."""
    difference = log_probabilities(path, rows) - transformers_log_probabilities(model, rows)
    return float(np.abs(difference).max())


def base_model(family: str) -> PreTrainedModel:
    """A tiny random model of `DEPTH` layers; Gemma 3 with the period that its real models have."""
    if family == "gemma3_text":
        return tiny.model(family, depth=DEPTH, layer_types=(PERIOD * DEPTH)[:DEPTH])
    return tiny.model(family, depth=DEPTH)


def largest_differences(family: str, units: list[str], folder: Path) -> tuple[float, float, float]:
    """The largest difference of log-probabilities for three files, over 16 rows of 48 tokens.

    The base model; the cut model's export, converted; the base model's file without the layers.
    """
    base = base_model(family)
    rows = tiny.tokens(rows=16, length=48)
    save.export_variant(base, source_of(base_folder(folder / "base"), units), folder / "export")
    cut_model = AutoModelForCausalLM.from_pretrained(folder / "export")
    convert(base, folder / "base.gguf")
    convert(cut_model, folder / "converted.gguf")
    layers = source_layers(base, units)
    gguf_file.copy_layers(folder / "base.gguf", folder / "copied.gguf", layers)

    return (
        largest_difference(folder / "base.gguf", base, rows),
        largest_difference(folder / "converted.gguf", cut_model, rows),
        largest_difference(folder / "copied.gguf", cut_model, rows),
    )


def largest_quantised_differences(folder: Path) -> tuple[float, float]:
    """The same for a quantised file (Q4_1, Q8_0, F16) and for that file without a layer.

    llama.cpp rounds what it multiplies with quantised weights to 8 bits, so neither is small.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, len(gguf_files.TOKENS), (16, 48), generator=generator)
    model = gguf_files.write(folder / "base.gguf")
    gguf_file.copy_layers(folder / "base.gguf", folder / "cut.gguf", [0, 2])

    base_difference = largest_difference(folder / "base.gguf", model, rows)
    del model.model.layers[1]
    cut_difference = largest_difference(folder / "cut.gguf", model, rows)
    return base_difference, cut_difference
