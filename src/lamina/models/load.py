"""Loading a model described by a manifest, and the one place where device and dtype are decided."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from lamina.errors import LaminaError
from lamina.models import devices, workload
from lamina.models.check import use_findings
from lamina.models.digests import check_files
from lamina.models.manifest import auto_class, loading
from lamina.models.tokenizer import read_tokenizer, special_behind, try_template
from lamina.store import checksum as seal

transformers_logging.disable_progress_bar()

# Buffers of old checkpoints that hold no weights: masks and frequencies.
_CONSTANT = re.compile(
    r"(^|[.])(attn|attention)[.]((masked_)?bias|causal_mask)$|(inv_freq|(cos|sin)_cached|position_ids)$"
)
BLOCK = 64  # 4-bit weights in a row that share a scale, as bitsandbytes has it by default
DTYPES = ("auto", "float32", "bfloat16", "float16")


def device() -> torch.device:
    """The first visible GPU, else the CPU. Which GPUs are visible is the scheduler's business."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def on_device(asked: str | torch.device | None) -> torch.device:
    """The device that is asked for by name, by default `device()`.

    Raises LaminaError if lamina does not compute there.
    """
    chosen = device() if asked is None else torch.device(asked)
    if chosen.type not in ("cpu", "cuda"):
        raise LaminaError(
            f"device: '{chosen}' is none that lamina computes on: sums need float64, and tests know CPUs and GPUs of "
            "NVIDIA or AMD. Write 'cpu' or 'cuda'."
        )
    return chosen


def load_model(
    manifest: dict[str, Any], on: torch.device | None = None, check: str | None = None
) -> PreTrainedModel:
    """The model in evaluation mode on `on`, in the manifest's dtype, from safetensors only.

    By default it has all devices of the job, see `lamina.models.devices`. `check` is the file of rule check_model.

    Raises LaminaError if transformers cannot build the model from its folder, its files are not those that were
    prepared, or the devices are too small.
    """
    check_files(manifest)
    model = load_folder(
        manifest["path"], manifest["dtype"], manifest["trust_remote_code"], name=manifest["source"]
    )
    workload.watch(model)
    if on is not None:
        return nn.Module.to(model, on)
    model = devices.spread(model, devices.visible())
    if check is not None:
        use_findings(model, manifest, seal.read_json(check))
    return model


def load_quantised(
    manifest: dict[str, Any], quantise: str, check: str | None = None
) -> PreTrainedModel:
    """The model of a manifest, its weights in 4 bits if `quantise` says so (`4bit`, not `none`)."""
    if quantise == "none":
        return load_model(manifest, check=check)
    path, dtype, trust = (manifest[key] for key in ("path", "dtype", "trust_remote_code"))
    model = load_folder(path, dtype, trust, manifest["source"], **placement(None, True, dtype))
    workload.watch(model)
    return model


def load_folder(
    folder: str | Path,
    dtype: str,
    trust_remote_code: bool,
    name: str | None = None,
    classes: tuple[type[PretrainedConfig], type[PreTrainedModel]] | None = None,
    **options: Any,
) -> PreTrainedModel:
    """The model in a folder. `options` (device_map, quantization_config) say where it goes, by default to the CPU.

    `classes`, of the configuration and of the model, replace those that transformers would pick.

    Raises LaminaError if `dtype` is not one of DTYPES, the folder holds an adapter, transformers cannot build the
    model, or one of its weights is missing or has another shape.
    """
    if dtype not in DTYPES:
        raise LaminaError(f"dtype: '{dtype}' is not known. Write one of: {', '.join(DTYPES)}.")
    if (Path(folder) / "adapter_config.json").is_file():
        raise LaminaError(
            f"{folder} holds an adapter (adapter_config.json): transformers would load the weights of the model that "
            "it names. Merge it into them first (PEFT: merge_and_unload, then save_pretrained), or delete its files."
        )
    name, local = (
        name or str(folder),
        {"trust_remote_code": trust_remote_code, "local_files_only": True},
    )
    with loading(name, str(folder)):
        if classes is not None:
            options["config"] = classes[0].from_pretrained(folder, local_files_only=True)
        config = options.get("config") or AutoConfig.from_pretrained(folder, **local)
        kind: Any = classes[1] if classes else auto_class(config)
        if (
            hasattr(options.get("quantization_config"), "llm_int8_skip_modules")
            and device().type == "cpu"
        ):
            with torch.device("meta"):
                skeleton = (
                    kind(config)
                    if classes
                    else kind.from_config(config, trust_remote_code=trust_remote_code)
                )
            options["quantization_config"].llm_int8_skip_modules = _part_blocks(skeleton)
        model, loading_info = kind.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            **local,
            # `check_whole` reports weights of another shape, together with missing ones.
            ignore_mismatched_sizes=True,
            **options,
        )
    check_whole(name, loading_info)
    _check_tied(name, model)
    _return_mappings(model)
    for module in model.modules():
        # A processor that computes in bfloat16 would pack 4-bit weights anew at each validation and round their scales.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    loaded: PreTrainedModel = model.eval()
    return loaded


def _return_mappings(model: PreTrainedModel) -> None:
    """Have the model return what it computes by name, and only its logits.

    Training code leaves `return_dict: false` or `output_attentions: true` in config.json. They change no number.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            config.return_dict = True
            config.output_hidden_states = False
            if config.output_attentions:
                config.output_attentions = False


def _part_blocks(model: PreTrainedModel) -> list[str]:
    """Names of the linear maps that a processor cannot read in 4 bits, and of the output embedding, which stays whole.

    Some processors are given wrong weights by bitsandbytes, or none, where a row ends within a block. So such maps are
    left whole on all processors.
    """
    head = model.get_output_embeddings()
    linear = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    return [name for name, module in linear.items() if module is head or module.in_features % BLOCK]


def check_whole(name: str, loading_info: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would make up or leave out; it lists no tied, optional or constant ones."""
    mismatched = {
        str(key[0] if isinstance(key, tuple) else key) for key in loading_info["mismatched_keys"]
    }
    lacking = sorted({*map(str, loading_info["missing_keys"])} - mismatched)
    stray = sorted(
        key for key in map(str, loading_info["unexpected_keys"]) if not _CONSTANT.search(key)
    )
    # A word that all names begin with is one fault, and not as many as there are tensors.
    prefixes = (
        {key.removesuffix(lacking[0]) for key in stray if key.endswith(lacking[0])}
        if lacking
        else set()
    )
    for prefix in prefixes:
        if prefix and {prefix + key for key in lacking} <= set(stray):
            raise LaminaError(
                f"the model '{name}' has its weights under other names: '{prefix}' stands before each, such as "
                f"{prefix}{lacking[0]}. Rename the tensors, or save the model that is inside of that part."
            )
    for what, keys in (("no weights", lacking), ("weights of another shape", sorted(mismatched))):
        if keys:
            hint = "Download it again, or correct config.json."
            if keys is lacking and stray:
                hint = f"It stores others, such as {stray[0]}: rename them, or correct config.json."
            raise LaminaError(
                f"the model '{name}' has {what} for {_first(keys)}, which its config.json asks for: they would be "
                f"random. {hint}"
            )
    if stray:
        raise LaminaError(
            f"the model '{name}' stores {_first(stray)}, for which its config.json has no place: they would be left "
            "out, and another model measured. Correct config.json (num_hidden_layers, attention_bias, architectures "
            "…). If the model is right without them, load it by transformers and save it anew."
        )


def _first(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _check_tied(name: str, model: PreTrainedModel) -> None:
    """Refuse weights that config.json ties and that are stored twice with other numbers.

    transformers leaves them untied on loading, and ties them when it is asked again, as lm-eval and an export do:
    sweeps, benchmarks and exports would be of different models. Which is meant only the model's author knows.
    """
    for target, source in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first, second = model.get_parameter_or_buffer(target), model.get_parameter_or_buffer(source)
        known = not (first.is_meta or second.is_meta)  # weights that are read when they are needed
        if first is not second and known and not torch.equal(first, second.to(first.device)):
            raise LaminaError(
                f"the model '{name}' stores {target} and {source} with other numbers, and its config.json ties the two "
                "(tie_word_embeddings). Write `tie_word_embeddings: false` there if both are meant (the perplexity of "
                f"a text shows it), or save the model without {target}."
            )


def placement(
    device_map: str | dict[str, Any] | None, load_in_4bit: bool, dtype: str
) -> dict[str, Any]:
    """Options of `load_folder` for several devices or for weights in 4 bits."""
    options: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    if load_in_4bit:
        compute = getattr(torch, dtype) if dtype in DTYPES[1:] else torch.bfloat16
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=compute, bnb_4bit_quant_type="nf4"
        )
        options.setdefault("device_map", {"": device()})
    return options


def load_tokenizer(
    manifest: dict[str, Any], config: PretrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer beside the model's weights; `config` is the model's, if it is loaded already.

    Raises LaminaError if the folder holds none that transformers can load.
    """
    folder, source = manifest["path"], manifest.get("source", manifest["path"])
    local = {"trust_remote_code": manifest["trust_remote_code"], "local_files_only": True}
    if config is None and Path(folder, "config.json").is_file():
        with loading(
            source, folder
        ):  # a tokenizer needs it, and its faults are none of the tokenizer
            config = AutoConfig.from_pretrained(folder, **local)
    try:
        tokenizer = read_tokenizer(folder, config=config, **local)
        if manifest.get("chat_template") and tokenizer.chat_template:
            try_template(tokenizer, manifest)
        behind = special_behind(tokenizer)
    except (MemoryError, LaminaError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:500]
        raise LaminaError(
            f"the tokenizer of the model '{source}' does not load: {type(error).__name__}: {message} Put "
            "tokenizer.json and tokenizer_config.json beside its weights."
        ) from error
    if behind:
        raise LaminaError(
            f"the tokenizer of the model '{source}' puts {behind} behind every text, so it would stand between a "
            'question and its answer. Write "add_eos_token": false in its tokenizer_config.json, and take it out of '
            "post_processor in tokenizer.json."
        )
    return tokenizer
