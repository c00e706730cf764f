"""Loads the model of a manifest. Only this module decides its device and dtype."""

import re
from collections.abc import Mapping, Sequence
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
from lamina.models.checkpoint import check_is_no_adapter
from lamina.models.digests import check_files
from lamina.models.manifest import auto_class, explaining_load_errors
from lamina.models.tokenizer import read_tokenizer, special_tokens_after, try_template
from lamina.store import checksum

transformers_logging.disable_progress_bar()

DTYPES = ("auto", "float32", "bfloat16", "float16")

# Buffers of old checkpoints that hold no weights: masks and frequencies.
_CONSTANT_BUFFER = re.compile(
    r"(^|[.])(attn|attention)[.]((masked_)?bias|causal_mask)$"
    r"|(inv_freq|(cos|sin)_cached|position_ids)$"
)
# Consecutive 4-bit weights that share a scale: the default of bitsandbytes.
_BLOCK_SIZE = 64

ModelClasses = tuple[type[PretrainedConfig], type[PreTrainedModel]]


def default_device() -> torch.device:
    """The first visible GPU, else the CPU. The scheduler decides which GPUs are visible."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def choose_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; without a name, the default.

    Raises LaminaError if lamina does not compute there.
    """
    device = default_device() if name is None else torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise LaminaError(
            f"device: lamina does not compute on '{device}'. It needs float64, and it is tested on "
            "CPUs and on GPUs of NVIDIA or AMD. Write 'cpu' or 'cuda'."
        )
    return device


def load_model(
    manifest: dict[str, Any], on: torch.device | None = None, check: str | None = None
) -> PreTrainedModel:
    """The model of a manifest in evaluation mode, in the manifest's dtype, from safetensors only.

    on: a device; by default, the layers are spread over all devices of the job, see
        `lamina.models.devices`.
    check: the file of rule check_model, whose findings need not be checked again.

    Raises LaminaError if transformers cannot build the model from its folder, its files are not
    those that were prepared, or the devices are too small.
    """
    check_files(manifest)
    model = load_folder(
        manifest["path"], manifest["dtype"], manifest["trust_remote_code"], name=manifest["source"]
    )
    workload.count_work(model)
    if on is not None:
        return nn.Module.to(model, on)
    model = devices.spread_model(model, devices.visible_devices())
    if check is not None:
        use_findings(model, manifest, checksum.read_json(check))
    return model


def load_quantised(
    manifest: dict[str, Any], quantise: str, check: str | None = None
) -> PreTrainedModel:
    """The model of a manifest, with its weights in 4 bits if `quantise` is `4bit`, not `none`."""
    if quantise == "none":
        return load_model(manifest, check=check)
    dtype = manifest["dtype"]
    model = load_folder(
        manifest["path"],
        dtype,
        manifest["trust_remote_code"],
        name=manifest["source"],
        **placement_options(None, True, dtype),
    )
    workload.count_work(model)
    return model


def load_folder(
    folder: str | Path,
    dtype: str,
    trust_remote_code: bool,
    name: str | None = None,
    classes: ModelClasses | None = None,
    **options: Any,
) -> PreTrainedModel:
    """The model in a folder.

    name: what errors call it; by default the folder.
    classes: those of the configuration and of the model, instead of what transformers would pick.
    options: where the weights go, and in how many bits (`placement_options`); by default the CPU.

    Raises LaminaError if `dtype` is not one of DTYPES, the folder holds an adapter, transformers
    cannot build the model, or one of its weights is missing or has another shape.
    """
    if dtype not in DTYPES:
        raise LaminaError(f"dtype: '{dtype}' is not known. Write one of: {', '.join(DTYPES)}.")
    check_is_no_adapter(Path(folder))
    name = name or str(folder)
    with explaining_load_errors(name, str(folder)):
        if classes is None:
            config = AutoConfig.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        else:
            config = classes[0].from_pretrained(folder, local_files_only=True)
            options["config"] = config
        model_class: Any = classes[1] if classes else auto_class(config)
        quantization: Any = options.get("quantization_config")
        if hasattr(quantization, "llm_int8_skip_modules") and default_device().type == "cpu":
            skeleton = _build_skeleton(model_class, config, trust_remote_code)
            quantization.llm_int8_skip_modules = _list_unquantised(skeleton)
        model, loading_info = model_class.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            # `check_whole` reports weights of another shape, together with missing ones.
            ignore_mismatched_sizes=True,
            **options,
        )
    check_whole(name, loading_info)
    _check_tied(name, model)
    _reset_outputs(model)
    _keep_scales(model)
    loaded: PreTrainedModel = model.eval()
    return loaded


def _build_skeleton(
    model_class: Any, config: PretrainedConfig, trust_remote_code: bool
) -> PreTrainedModel:
    """A model without weights (meta tensors), by an auto class or a class of its own."""
    with torch.device("meta"):
        if issubclass(model_class, PreTrainedModel):
            return model_class(config)
        skeleton: PreTrainedModel = model_class.from_config(
            config, trust_remote_code=trust_remote_code
        )
    return skeleton


def _list_unquantised(model: PreTrainedModel) -> list[str]:
    """Names of the linear modules that stay unquantised on a CPU.

    These are the output embedding, and those whose rows end within a block: on some CPUs,
    bitsandbytes gives these wrong weights, or none. So they are skipped on all CPUs.
    """
    head = model.get_output_embeddings()
    names: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if module is head or module.in_features % _BLOCK_SIZE:
            names.append(name)
    return names


def _reset_outputs(model: PreTrainedModel) -> None:
    """Make the model return a named output, with its logits only.

    Training code may leave `return_dict: false` or `output_attentions: true` in config.json. These
    settings change no number.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            config.return_dict = True
            config.output_hidden_states = False
            if config.output_attentions:
                config.output_attentions = False


def _keep_scales(model: PreTrainedModel) -> None:
    """Keep the scales of 4-bit weights as they are on a CPU.

    A CPU that computes in bfloat16 would repack the weights at each validation, and round the
    scales.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_whole(name: str, loading_info: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would initialise at random or ignore.

    loading_info: what `from_pretrained` gives. It lists no tied, optional or constant weights.

    Raises LaminaError, which names some of them.
    """
    mismatched = _list_mismatched(loading_info)
    missing = sorted(set(map(str, loading_info["missing_keys"])) - set(mismatched))
    unexpected: list[str] = []
    for key in sorted(map(str, loading_info["unexpected_keys"])):
        if not _CONSTANT_BUFFER.search(key):
            unexpected.append(key)

    _check_no_prefix(name, missing, unexpected)
    if missing:
        hint = "Download it again, or correct config.json."
        if unexpected:
            hint = (
                f"It stores others, such as {unexpected[0]}: rename them, or correct config.json."
            )
        raise _random_weights(name, "no weights", missing, hint)
    if mismatched:
        hint = "Download it again, or correct config.json."
        raise _random_weights(name, "weights of another shape", mismatched, hint)
    if unexpected:
        raise LaminaError(
            f"the model '{name}' stores {_name_some(unexpected)}, which its config.json does not "
            "ask for: they would be ignored, and another model measured. Correct config.json "
            "(num_hidden_layers, attention_bias, architectures …). If the model is right without "
            "them, load it with transformers and save it again."
        )


def _list_mismatched(loading_info: Mapping[str, Any]) -> list[str]:
    names: set[str] = set()
    for key in loading_info["mismatched_keys"]:
        # A name, or a name with both shapes.
        names.add(str(key[0] if isinstance(key, tuple) else key))
    return sorted(names)


def _check_no_prefix(name: str, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Refuse weights whose names all have an extra prefix: one fault, not one per tensor."""
    if not missing:
        return
    first = missing[0]
    prefixes = [key.removesuffix(first) for key in unexpected if key.endswith(first)]
    for prefix in filter(None, prefixes):
        if {prefix + key for key in missing} <= set(unexpected):
            raise LaminaError(
                f"the model '{name}' has the extra prefix '{prefix}' in the names of its weights, "
                f"such as {prefix}{first}. Rename the tensors, or save the inner model alone."
            )


def _random_weights(name: str, what: str, keys: Sequence[str], hint: str) -> LaminaError:
    return LaminaError(
        f"the model '{name}' has {what} for {_name_some(keys)}, which its config.json asks for: "
        f"they would be random. {hint}"
    )


def _name_some(keys: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    names = ", ".join(keys[:3])
    return names if len(keys) <= 3 else f"{names} and {len(keys) - 3} more"


def _check_tied(name: str, model: PreTrainedModel) -> None:
    """Refuse weights that config.json ties and that are stored twice with different numbers.

    transformers leaves them untied on loading, but ties them later on request, as lm-eval and an
    export do. So sweeps, benchmarks and exports would use different models. Only the model's author
    knows which one is meant.
    """
    for target, source in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first = model.get_parameter_or_buffer(target)
        second = model.get_parameter_or_buffer(source)
        if first is second or first.is_meta or second.is_meta:
            continue  # meta: weights that are read when they are needed
        if not torch.equal(first, second.to(first.device)):
            raise LaminaError(
                f"the model '{name}' stores {target} and {source} with different values, but its "
                "config.json ties the two (tie_word_embeddings). Write `tie_word_embeddings: "
                "false` there if both are meant (the perplexity of a text shows it), or save the "
                f"model without {target}."
            )


def placement_options(
    device_map: str | dict[str, Any] | None, load_in_4bit: bool, dtype: str
) -> dict[str, Any]:
    """Options of `load_folder` for several devices or for weights in 4 bits."""
    options: dict[str, Any] = {}
    if device_map is not None:
        options["device_map"] = device_map
    if load_in_4bit:
        is_stated = dtype in DTYPES and dtype != "auto"
        compute_dtype = getattr(torch, dtype) if is_stated else torch.bfloat16
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=compute_dtype, bnb_4bit_quant_type="nf4"
        )
        options.setdefault("device_map", {"": default_device()})
    return options


def load_tokenizer(
    manifest: dict[str, Any], config: PretrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer in the folder of a model.

    config: the model's, if it is loaded already.

    Raises LaminaError if the folder holds none that transformers can load, or it adds tokens after
    a text.
    """
    folder = manifest["path"]
    source = manifest.get("source", folder)
    options = {"trust_remote_code": manifest["trust_remote_code"], "local_files_only": True}
    if config is None and Path(folder, "config.json").is_file():
        # The tokenizer needs the configuration, whose faults must not be reported as its own.
        with explaining_load_errors(source, folder):
            config = AutoConfig.from_pretrained(folder, **options)
    try:
        tokenizer = read_tokenizer(folder, config=config, **options)
        if manifest.get("chat_template") and tokenizer.chat_template:
            try_template(tokenizer, manifest)
        added_tokens = special_tokens_after(tokenizer)
    except (MemoryError, LaminaError):
        raise
    except Exception as error:  # a folder can make transformers raise anything
        message = " ".join(str(error).split())[:500]
        raise LaminaError(
            f"the tokenizer of the model '{source}' does not load: {type(error).__name__}: "
            f"{message} Put tokenizer.json and tokenizer_config.json next to its weights."
        ) from error
    if added_tokens:
        raise LaminaError(
            f"the tokenizer of the model '{source}' puts {added_tokens} after every text, so it "
            'would come between a question and its answer. Write "add_eos_token": false in its '
            "tokenizer_config.json, and remove it from post_processor in tokenizer.json."
        )
    return tokenizer
