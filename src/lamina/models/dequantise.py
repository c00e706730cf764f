"""Turn a GGUF file or a quantised folder into an ordinary checkpoint.

The checkpoint holds config.json, safetensors weights and the tokenizer's files.

    python -m lamina.models.dequantise FILE.gguf FOLDER [DTYPE]

transformers reads the weights and settings from a reduced copy of the GGUF file. The copy holds the
vocabulary only where transformers needs its size, because transformers spends minutes on it.

This module refuses what transformers would drop without a message: a tensor that has no place in
the model, a setting that transformers does not know, and an unknown way of cutting text.
"""

import copy
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.quantizers import AutoQuantizationConfig

from lamina.errors import LaminaError, located_at, report_errors
from lamina.models import gguf
from lamina.models.checkpoint import (
    check_loadable,
    decoder_settings,
    quantisation_method,
    read_settings,
)
from lamina.models.gguf import Header, Setting
from lamina.models.gguf_tokenizer import UnknownTokenizerError, build_tokenizer
from lamina.models.load import check_whole, load_folder
from lamina.models.manifest import explaining_load_errors
from lamina.models.structure import text_config
from lamina.models.tokenizer import read_tokenizer, special_tokens_after
from lamina.store import parquet

_logger = logging.getLogger(__name__)

_ROPE_FACTORS = "rope_freqs.weight"  # no weights: the divisors of the RoPE frequencies
# Llama 3.1, 3.2 and 3.3 stretch long wavelengths and keep short ones. They interpolate between.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# For each family, the configuration attribute that each setting becomes. An unused one has None.
_READ_BY_TRANSFORMERS: Mapping[str, Any] = GGUF_CONFIG_MAPPING
_ROPE = ("rope.freq_base", "rope.scaling.type", "rope.scaling.factor")
# Settings that transformers reads for some families at most, and their configuration attributes.
_ATTRIBUTES = {
    "vocab_size": "vocab_size",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Settings that transformers derives from others. The stated values are compared with the derived.
_COMPARED = ("attention.value_length", "rope.dimension_count", "rope.freq_base_swa")
# The number of layers of the 27 B models. For these, llama.cpp scales queries by the hidden size
# divided by the number of heads, and not by the head size.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}


def dequantise_model(path: Path, folder: Path, dtype: str = "auto", where: str = "source") -> None:
    """Write a quantised model to `folder` as an ordinary checkpoint in `dtype`.

    `path` is a GGUF file, or the config.json of a quantised folder. `auto` is the dtype that
    config.json states. For a GGUF file it is bfloat16, unless most numbers of the file are float32
    or float16. A tokenizer.json in the folder of a GGUF file replaces the tokenizer that the file
    describes.

    Raises LaminaError if the file is damaged, or if something in it would be lost. No incomplete
    folder remains after an error.
    """
    if path.name == "config.json":
        _dequantise_folder(path.parent, folder, dtype, where)
        return
    # The tokenizer takes seconds and the weights take minutes, so a bad tokenizer fails first.
    tokenizer = read_gguf_tokenizer(path, where)
    if dtype == "auto":
        dtype = gguf.stored_dtype(gguf.read_header(path, where))
    model = read_model(path, dtype, where, folder.parent)
    _forget_quantisation(model)
    with parquet.replace_file(folder) as temporary:
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        reloaded = read_tokenizer(temporary, local_files_only=True)
        if reloaded.backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
            raise _no_tokenizer(path, where, "has a tokenizer that changes when saved and loaded")
    _logger.warning("%s: dequantised %s into %s, once.", where, path, folder)


def read_model(
    path: Path, dtype: str, where: str, workspace: Path | None = None
) -> PreTrainedModel:
    """The model in a GGUF file with its weights in `dtype`; `auto` is float32.

    transformers reads a temporary copy of the file. The copy is in `workspace`, by default the
    folder of the file.

    Raises LaminaError as `dequantise_model` does.
    """
    header = gguf.read_header(path, where)
    _check_known(header, path, where)
    settings = _settings_to_load(header, path, where)
    tensors = {name: each for name, each in header.tensors.items() if name != _ROPE_FACTORS}
    workspace = workspace or path.parent
    workspace.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".gguf-") as temporary:
        file = Path(temporary, "model.gguf")
        gguf.write_gguf(file, settings, tensors.items())
        with located_at(where), explaining_load_errors(path.name, path.parent):
            config = AutoConfig.from_pretrained(
                temporary, gguf_file=file.name, local_files_only=True, trust_remote_code=False
            )
            _set_attributes(config, header)
            _set_rope(config, header)
        _check_stated(config, header, path, where)
        kind: Any = AutoModelForCausalLM
        with located_at(where), explaining_load_errors(path.name, path.parent):
            model, loading_info = kind.from_pretrained(
                temporary,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which `check_whole` names
                gguf_file=file.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
            )
    model.config.name_or_path = str(path)
    sizes = {name: tensor.n_numbers for name, tensor in tensors.items()}
    _check_tensors(model, sizes, path, where)
    with located_at(where):  # names unexpected tensors and the missing ones
        check_whole(path.name, loading_info)
    loaded: PreTrainedModel = model.eval()
    return loaded


def read_gguf_tokenizer(path: Path, where: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the tokenizer.json in a GGUF file's folder, or else of the file itself.

    Raises LaminaError if the file's tokenizer cannot be built, or if it would put a token between a
    question and its answer.
    """
    if (path.parent / "tokenizer.json").is_file():
        return read_tokenizer(path.parent, local_files_only=True)
    header = gguf.read_header(path, where)
    try:
        tokenizer = build_tokenizer(header)
    except MemoryError:
        raise
    except UnknownTokenizerError as error:
        raise _no_tokenizer(path, where, str(error)) from error
    except Exception as error:  # tokenizers raises bare Exceptions
        why = f"has a tokenizer that does not load ({type(error).__name__}: {error})"
        raise _no_tokenizer(path, where, why) from error
    end_tokens = special_tokens_after(tokenizer)
    if end_tokens:
        why = f"puts {end_tokens} after every text, even between a question and its answer"
        raise _no_tokenizer(path, where, why)
    return tokenizer


def _no_tokenizer(path: Path, where: str, why: str) -> LaminaError:
    return LaminaError(
        f"{where}: {path} {why}, and other tokens would give other results. "
        "Put the model's tokenizer.json and tokenizer_config.json next to the file."
    )


def _check_known(header: Header, path: Path, where: str) -> None:
    """Refuse a model with settings that neither transformers nor this module reads."""
    family = header.family
    known = _READ_BY_TRANSFORMERS.get(family)
    if known is None:
        raise LaminaError(
            f"{where}: {path} holds a model of family '{family}', "
            "which transformers does not read from GGUF. "
            "Use its checkpoint with safetensors weights."
        )
    stated = {
        name.removeprefix(f"{family}."): setting.value
        for name, setting in header.settings.items()
        if name.startswith(f"{family}.")
    }
    read_here = {*known, *_ATTRIBUTES, *_COMPARED, *_ROPE}
    lost = [
        name for name, value in stated.items() if name not in read_here and not _is_unused(value)
    ]
    scaling = header.get(f"{family}.rope.scaling.type", "linear")
    if scaling not in ("linear", "none"):
        lost.append(f"rope.scaling.type: {scaling}")
    if lost:
        raise LaminaError(
            f"{where}: {path} has settings that would be lost ({', '.join(lost)}), "
            "so results would change. Use the model's checkpoint with safetensors weights."
        )


def _is_unused(value: Any) -> bool:
    """Whether a setting says that the model lacks a feature, such as `expert_count: 0`."""
    return value in (0, "none")


def _settings_to_load(header: Header, path: Path, where: str) -> dict[str, Setting]:
    """The settings from which transformers builds the model.

    The vocabulary is kept only where transformers needs it for the size of the vocabulary.
    Converters write some numbers once for each layer. transformers accepts such a list for few
    families; for the others, a list of equal numbers becomes one number.

    Raises LaminaError if the numbers of such a list differ.
    """
    family = header.family
    needed = {"general.architecture", "general.alignment"}
    settings = {
        name: setting
        for name, setting in header.settings.items()
        if name in needed or name.startswith(f"{family}.") or name.endswith("_token_id")
    }
    depth = header.get(f"{family}.block_count")
    for name, setting in settings.items():
        if family in GGUF_CONFIG_ARCHS or not setting.is_list:
            continue
        numbers = setting.value if isinstance(setting.value, list) else []
        if len(numbers) == depth and len(set(numbers)) == 1:
            settings[name] = gguf.with_value(setting, numbers[0])
        elif len(numbers) == depth:
            raise LaminaError(
                f"{where}: {path} has layers of several sizes (`{name}: {numbers}`), "
                f"but transformers builds all layers of a '{family}' in one size. "
                "Use the model's checkpoint with safetensors weights."
            )
    vocabulary = header.settings.get("tokenizer.ggml.tokens")
    counted = "vocab_size" in _READ_BY_TRANSFORMERS[family].values()
    if vocabulary is not None and (family in GGUF_CONFIG_ARCHS or not counted):
        settings["tokenizer.ggml.tokens"] = vocabulary
    elif "token_embd.weight" in header.tensors:
        rows = header.tensors["token_embd.weight"].shape[0]
        block_count = settings[f"{family}.block_count"]
        settings.setdefault(f"{family}.vocab_size", gguf.with_value(block_count, rows))
    return settings


def _set_attributes(config: PretrainedConfig, header: Header) -> None:
    """Set the sizes that a file states and transformers leaves at the defaults of the family."""
    family = header.family
    read_by_transformers = _READ_BY_TRANSFORMERS[family]
    for name, attribute in _ATTRIBUTES.items():
        value = header.get(f"{family}.{name}")
        if value is None or _is_unused(value) or read_by_transformers.get(name) is not None:
            continue
        if hasattr(config, attribute):
            setattr(config, attribute, value)
    if hasattr(config, "query_pre_attn_scalar"):
        width_by_head = config.hidden_size // config.num_attention_heads
        is_scaled_by_width = _SCALED_BY_WIDTH.get(family) == config.num_hidden_layers
        config.query_pre_attn_scalar = width_by_head if is_scaled_by_width else config.head_dim


def _set_rope(config: PretrainedConfig, header: Header) -> None:
    """Set the rotary embedding that a file states; transformers reads at most its base.

    Linear scaling divides all frequencies by one number. Llama 3 divides each by its own number.
    Where sliding-window layers have frequencies of their own, only the other layers are set.
    """
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return
    of_all_layers = rope.get("full_attention", rope)
    base = header.get(f"{header.family}.rope.freq_base")
    if base is not None:
        of_all_layers["rope_theta"] = base
    scale = header.get(f"{header.family}.rope.scaling.factor", 0)
    if scale and header.get(f"{header.family}.rope.scaling.type") != "none":
        of_all_layers |= {"rope_type": "linear", "factor": scale}
    stored = header.tensors.get(_ROPE_FACTORS)
    if stored is not None:
        of_all_layers |= _divided_frequencies(config, gguf.read_floats(stored))


def _divided_frequencies(config: PretrainedConfig, factors: np.ndarray) -> dict[str, Any]:
    """Settings of a rotary embedding whose frequencies are divided by `factors`.

    Each pair of numbers that is rotated together has one factor.
    """
    if np.all(factors == 1):
        return {}
    theta = config.rope_parameters["rope_theta"]
    llama3 = {**_LLAMA3, "factor": float(factors.max())}
    trial = copy.deepcopy(config)
    trial.rope_parameters = {"rope_theta": theta, **llama3}
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](trial, torch.device("cpu"))
    exponents = np.arange(len(factors)) / len(factors)
    if np.allclose(frequencies.numpy() * theta**exponents * factors, 1, rtol=1e-4):
        return llama3
    listed = factors.tolist()
    return {
        "rope_type": "longrope",
        "short_factor": listed,
        "long_factor": listed,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
    }


def _check_stated(config: PretrainedConfig, header: Header, path: Path, where: str) -> None:
    """Refuse a file whose settings differ from those of the model that transformers builds."""
    rope = getattr(config, "rope_parameters", None) or {}
    of_all_layers = rope.get("full_attention", rope)
    heads = getattr(config, "num_attention_heads", None) or 1
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rotated_share = of_all_layers.get("partial_rotary_factor") or getattr(
        config, "partial_rotary_factor", 1.0
    )
    built = {name: getattr(config, attribute, None) for name, attribute in _ATTRIBUTES.items()} | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * rotated_share),
        "rope.freq_base": of_all_layers.get("rope_theta"),
        "rope.freq_base_swa": rope.get("sliding_attention", {}).get("rope_theta"),
    }
    read_by_transformers = _READ_BY_TRANSFORMERS[header.family]
    for name, value in built.items():
        stated = header.get(f"{header.family}.{name}")
        if stated is None or _is_unused(stated) or stated == value:
            continue
        # transformers takes llama.cpp's rotated width for the head size. That is right only where
        # the whole head is rotated, so this setting is always compared.
        if name == "rope.dimension_count" or read_by_transformers.get(name) is None:
            raise LaminaError(
                f"{where}: {path} says `{header.family}.{name}: {stated}`, "
                f"but transformers would build the model with {value}. "
                "Use the model's checkpoint with safetensors weights."
            )


def _dequantise_folder(source: Path, folder: Path, dtype: str, where: str) -> None:
    """Dequantise a folder with weights in a format that transformers reads on any machine."""
    settings = read_settings(source, where, str(source))
    check_loadable(source, settings, where, str(source))
    stated = decoder_settings(settings)["quantization_config"]
    options: dict[str, Any] = {}
    if quantisation_method(settings) != "bitsandbytes":
        options["quantization_config"] = AutoQuantizationConfig.from_dict(
            stated | {"dequantize": True}
        )
    model = load_folder(source, dtype, False, **options)
    if not options:
        model = model.dequantize(None if dtype == "auto" else getattr(torch, dtype))
    still_quantised = [
        name for name, weight in model.named_parameters() if not weight.is_floating_point()
    ]
    if still_quantised:
        raise LaminaError(
            f"{where}: {source} keeps {still_quantised[0]} quantised. "
            "Write the checkpoint that it was made from."
        )
    _forget_quantisation(model)
    with parquet.replace_file(folder) as temporary:
        shutil.rmtree(folder, ignore_errors=True)
        # Tensors keep transformers' names: the original format is the quantised one.
        model.save_pretrained(temporary, save_original_format=False)
        for file in source.iterdir():
            if file.is_file() and not str(file).endswith(
                (".safetensors", ".index.json", "/config.json")
            ):
                shutil.copyfile(file, temporary / file.name)
        reloaded = load_folder(temporary, "auto", False).state_dict()
        expected = model.state_dict()
        if any(not torch.equal(reloaded[name], weight) for name, weight in expected.items()):
            raise LaminaError(
                f"{where}: the dequantised {source} changes when it is saved and loaded. "
                "Dequantise it with another tool."
            )
    _logger.warning("%s: dequantised %s into %s, once.", where, source, folder)


def _forget_quantisation(model: PreTrainedModel) -> None:
    """Remove the traces of quantisation from a model, so that it is saved as an ordinary one.

    With `quantization_config`, loading would refuse the model or look for quantised weights.
    """
    for config in (model.config, text_config(model)):
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    model.__dict__.pop("hf_quantizer", None)


def _check_tensors(model: PreTrainedModel, sizes: dict[str, int], path: Path, where: str) -> None:
    """Refuse a file with more or fewer numbers than its model, or a model still quantised."""
    parameters = list(model.parameters())
    if any(not parameter.is_floating_point() for parameter in parameters):
        raise LaminaError(
            f"{where}: {path} holds a number format that cannot be converted to floating point."
        )
    needed = sum(parameter.numel() for parameter in parameters)
    if sum(sizes.values()) != needed:
        unplaced = [name for name in sizes if not name.startswith(("blk.", "token_embd", "output"))]
        detail = f" Tensors that have no place in it: {', '.join(unplaced)}." if unplaced else ""
        raise LaminaError(
            f"{where}: {path} holds {sum(sizes.values())} weights, but its model has {needed}."
            f"{detail} Use the model's checkpoint with safetensors weights."
        )


if __name__ == "__main__":
    with report_errors():
        dequantise_model(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
