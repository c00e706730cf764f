"""Writes a variant as a Hugging Face checkpoint, with modeling code only where it is needed.

Pruned and healed layers make a **stock** checkpoint. A patch needs a small modeling file next to
the weights (`modeling_lamina.py`, form **code**). Without that file the checkpoint does not load,
so a patch is never lost. Removed sub-layers are zero weights in a stock checkpoint, and are left
out in form code.
"""

import copy
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import metadata_load
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Repairing, weights_and_patches
from lamina.models.cutting import kinds_by_layer
from lamina.models.export import gguf_file, modeling_lamina, own_code
from lamina.models.export.card import BaseSource, Facts, render_card
from lamina.models.export.check import check_export
from lamina.models.export.runtimes import explain_vllm_obstacle
from lamina.models.gguf import SUFFIX, check_cut, is_gguf, shard_files
from lamina.models.load import load_folder
from lamina.models.manifest import auto_class
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of, text_config
from lamina.models.surgery import LAYER_INDEX_ATTRIBUTES, find_runs, source_layers, steps_of
from lamina.models.units import SUBLAYERS, Repetition, list_visits, parse_edit, parse_unit
from lamina.variant import EXPORTED_AS
from lamina.version import VERSION

RECORD = "lamina.json"

# Weights files, as transformers names them.
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?[.]safetensors([.]index[.]json)?")
# Files for the tokenizer, images, the chat template and the licence in a model's folder, copied as
# they are.
_CARRIED = re.compile(
    r"(tokenizer.*|special_tokens_map|added_tokens|vocab|tekken|.*processor_config|chat_template"
    r"|generation_config)\.json|(merges|vocab|dict)\.txt|tokenizer\.model.*"
    r"|.*\.(model|tiktoken|jinja)|(LICEN[CS]E|NOTICE|USE_POLICY).*"
)


def export_variant(
    base: PreTrainedModel,
    source: BaseSource,
    folder: str | Path,
    patches: Mapping[Boundary, Repairing] | None = None,
    adapter: str | Path | None = None,
    form: str = "auto",
    max_shard_size: str = "5GB",
) -> str:
    """Write a variant of `base` with its tokenizer and card; return its form.

    base: the unpruned model; it is not changed.
    folder: where to write. It must be absent, empty or an earlier export, which is replaced when
        all is written.
    patches, adapter: as for `materialise`; the adapter is merged.
    form: `auto` is stock unless a patch of the stream is left in the model (a repair that is folded
        into weights leaves none); `code` also leaves removed sub-layers out instead of zeroing
        them; `gguf` takes layers out of the GGUF file that is the source.
    max_shard_size: largest weights file, such as 5GB.

    Raises LaminaError if the parts do not fit together, the form cannot hold the variant, `folder`
    holds something else, or the checkpoint loads back as another model. Then no checkpoint is left
    behind.
    """
    target = Path(folder)
    _check_request(base, source, form, target)
    variant = materialise(base, source.plan, patches, adapter)
    has_patches = bool(modeling_lamina.describe(variant)["patches"])
    if form == "stock" and has_patches:
        raise LaminaError(
            "a stock checkpoint cannot hold a patch, so a reload would lose it. Export it with "
            "form=auto (which adds its modeling file and loads with trust_remote_code=True), or "
            "export the variant with repair none."
        )
    if form == "stock" or (form == "auto" and not has_patches):
        _zero_removed_sublayers(variant, base, source.plan)

    target.parent.mkdir(parents=True, exist_ok=True)
    # The name is fixed, so that an export removes what a killed one left behind.
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        written_form = _write_export(variant, base, source, form, temporary, max_shard_size)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written_form


def _write_export(
    variant: PreTrainedModel,
    base: PreTrainedModel,
    source: BaseSource,
    form: str,
    folder: Path,
    max_shard_size: str,
) -> str:
    """Write and check the weights, then the documents; returns the form."""
    if form == "gguf":
        layers = source_layers(base, source.plan["units"])
        gguf_file.save_gguf(variant, base, layers, Path(source.manifest["source"]), folder)
    else:
        form = save_variant(variant, folder, max_shard_size, Path(source.manifest["path"]))
        has_code = form == "code"
        check_export(variant, base, lambda: load_folder(folder, "auto", has_code))
    _write_documents(source, folder, base, variant, form)
    return form


def save_variant(
    variant: PreTrainedModel,
    folder: str | Path,
    max_shard_size: str = "5GB",
    base_folder: Path | None = None,
) -> str:
    """Write a materialised variant, with code if it needs it; return `stock` or `code`.

    base_folder: the base model's folder, whose tokenizer, generation configuration and licence are
        copied.

    Raises LaminaError if the variant needs code and its class is not one of transformers' own.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    # Save a shallow copy, because saving writes dtype and architecture into the configuration.
    shell = copy.copy(variant)
    shell.__dict__["config"] = copy.deepcopy(variant.config)
    if base_folder is not None and (base_folder / "generation_config.json").is_file():
        # The file is copied below as it is: transformers refuses to save some published ones.
        shell.__dict__["generation_config"] = GenerationConfig()

    special_modules = modeling_lamina.describe(variant)
    is_stock = not any(special_modules.values())
    # transformers renames weights on loading only for families that it knows. A model with code is
    # not one, so its weights keep the names that they have here.
    PreTrainedModel.save_pretrained(
        shell,
        target,
        state_dict=_copy_shared_layers(variant),
        max_shard_size=max_shard_size,
        save_original_format=is_stock,
    )
    if base_folder is not None:
        _copy_carried_files(base_folder, target)
    if not is_stock:
        _add_code(variant, target, special_modules)
        _name_tokenizer(variant, target)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)
    return "stock" if is_stock else "code"


def _copy_shared_layers(variant: PreTrainedModel) -> dict[str, torch.Tensor] | None:
    """The tensors of a variant, with copies of those that one layer shares with an earlier one.

    None if no layers share tensors.
    """
    addresses: set[int] = set()
    shared_addresses: set[int] = set()
    for layer in layers_of(variant):
        layer_addresses = {tensor.data_ptr() for tensor in layer.state_dict().values()}
        shared_addresses |= layer_addresses & addresses
        addresses |= layer_addresses
    if not shared_addresses:
        return None
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in variant.state_dict().items():
        tensors[name] = tensor.clone() if tensor.data_ptr() in shared_addresses else tensor
    return tensors


def save_checked(
    variant: PreTrainedModel,
    load_base: Callable[[], PreTrainedModel],
    folder: str | Path,
    max_shard_size: str = "5GB",
) -> str:
    """Write a variant as `save_variant` does, and check that it loads back as the same model.

    load_base: gives the base model, which is only loaded for the check, after the variant is
        written.
    folder: where to write. Weights of a model that are there already are replaced, other files
        stay.

    Raises LaminaError as `save_variant` and `check_export` do. The folder is then as it was.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
        form = save_variant(variant, temporary, max_shard_size)
        check_export(variant, load_base(), lambda: load_folder(temporary, "auto", form == "code"))
        for file in list(target.iterdir()):
            if _WEIGHTS.fullmatch(file.name):
                file.unlink()
        for file in sorted(Path(temporary).iterdir()):
            os.replace(file, target / file.name)
    if form == "code":
        _name_tokenizer(variant, target)
    return form


def _check_request(base: PreTrainedModel, source: BaseSource, form: str, target: Path) -> None:
    """Refuse an export that is impossible before any work is done for it."""
    if form not in EXPORTED_AS:
        raise LaminaError(
            f"there is no export form '{form}'. Write one of: {', '.join(EXPORTED_AS)}."
        )
    if getattr(base.config, "auto_map", None):
        raise LaminaError(
            f"{type(base).__name__} comes from Python code in the model's folder. Only models "
            "whose class is part of transformers can be exported."
        )
    if target.is_file():
        raise LaminaError(f"{target} is a file. Name a folder for the export.")
    if target.is_dir() and any(target.iterdir()) and not (target / RECORD).is_file():
        raise LaminaError(f"{target} is not empty and is not an export. Choose another folder.")
    if form == "gguf":
        additions = ""
        if source.plan.get("replacements"):
            additions = "layers of other models"
        elif any(_is_damped(edit) for edit in source.plan["units"]):
            additions = "damped layers"
        check_cut(source.variant, source.manifest["source"], source.plan["kind"], additions)


def _is_damped(name: str) -> bool:
    edit = parse_edit(name)
    return isinstance(edit, Repetition) and edit.is_damped


def _copy_carried_files(base_folder: Path, target: Path) -> None:
    """Copy the tokenizer, chat template, generation configuration and licence of the base model."""
    for file in sorted(base_folder.iterdir()):
        if file.is_file() and _CARRIED.fullmatch(file.name):
            shutil.copyfile(file, target / file.name)


def _add_code(
    variant: PreTrainedModel, target: Path, special_modules: modeling_lamina.SpecialModules
) -> None:
    """Put the modeling file beside the weights, and write a configuration that only it understands.

    special_modules: as `modeling_lamina.describe` gives them.
    """
    # lamina gives a variant sub-classes; the class of transformers comes after them.
    model_class = next(
        ancestor.__name__
        for ancestor in type(variant).__mro__
        if ancestor.__module__.startswith("transformers.")
    )
    config_class = type(variant.config)
    if not (hasattr(transformers, config_class.__name__) and hasattr(transformers, model_class)):
        raise LaminaError(
            f"{model_class} is not part of transformers, so a variant of it with patches or "
            "without sub-layers cannot be exported. Remove whole layers with repair none, or keep "
            "the variant as it is: lamina.load loads it."
        )
    model_type = f"lamina_{variant.config.model_type}"
    code = own_code.render_code(config_class.__name__, model_class, model_type)
    (target / own_code.CODE).write_text(code, encoding="utf-8")

    config_file = target / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    holder, field = modeling_lamina.find_refused_field(config_class)
    refused_value = (config[holder] if holder else config)[field]
    config = modeling_lamina.set_refused_field(config, config_class, modeling_lamina.REFUSAL)
    config["model_type"] = model_type
    config["architectures"] = ["LaminaForCausalLM"]
    config["auto_map"] = own_code.AUTO_MAP
    config["lamina"] = {**special_modules, "heads": refused_value}
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    config_file.write_text(text, encoding="utf-8")


def _name_tokenizer(variant: PreTrainedModel, target: Path) -> None:
    """Record the tokenizer's class: transformers cannot derive it from an unknown model type."""
    settings_file = target / "tokenizer_config.json"
    settings: dict[str, Any] = {}
    if settings_file.is_file():
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
    if "tokenizer_class" in settings or not (target / "tokenizer.json").is_file():
        return
    tokenizer = AutoTokenizer.from_pretrained(target, config=variant.config, local_files_only=True)
    settings["tokenizer_class"] = type(tokenizer).__name__
    settings_file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _zero_removed_sublayers(
    variant: PreTrainedModel, base: PreTrainedModel, plan: Mapping[str, Any]
) -> None:
    """Replace each removed sub-layer by the base model's module with all weights zero.

    It adds zero to the stream, as the module that stands in for a removed sub-layer does.
    """
    sources = source_layers(base, plan["units"])
    base_layers = [layers_of(base)[layer_index] for layer_index in sources]
    layer_pairs = zip(layers_of(variant), base_layers, strict=True)
    for position, (layer, base_layer) in enumerate(layer_pairs):
        for name, module in list(layer.named_children()):
            original = base_layer.get_submodule(name)
            if type(module) is not type(original):
                setattr(layer, name, _silence(original, position))


def _silence(original: nn.Module, layer_index: int) -> nn.Module:
    """A copy of a module with all weights zero, for the layer with this index."""
    silent = copy.deepcopy(original)
    for module in silent.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            zeros = nn.Parameter(weight.detach().clone().zero_(), requires_grad=False)
            setattr(module, name, zeros)
        for name in LAYER_INDEX_ATTRIBUTES:
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, layer_index)
    return silent


def _write_documents(
    source: BaseSource, folder: Path, base: PreTrainedModel, variant: PreTrainedModel, form: str
) -> None:
    """Write the card and the record of what was exported."""
    has_zeroed_sublayers = form == "stock" and _lacks_sublayers(base, source.plan["units"])
    facts = _collect_facts(source, folder, base, variant, form, has_zeroed_sublayers)
    (folder / "README.md").write_text(render_card(facts), encoding="utf-8")

    record = {
        "variant": str(source.variant),
        "form": form,
        "lamina": VERSION,
        "base": {key: source.manifest.get(key) for key in ("source", "revision", "weights_sha256")},
        "plan": dict(source.plan),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _collect_facts(
    source: BaseSource,
    folder: Path,
    base: PreTrainedModel,
    variant: PreTrainedModel,
    form: str,
    has_zeroed_sublayers: bool,
) -> Facts:
    """The facts for the card of an export whose weights are in `folder`."""
    n_layers = len(layers_of(base))
    base_config = text_config(base)
    special_modules = modeling_lamina.describe(variant)
    weights_files = [file for file in folder.iterdir() if file.suffix in (".safetensors", SUFFIX)]
    return Facts(
        **vars(source),
        form=form,
        n_base_parameters=sum(tensor.numel() for tensor in weights_and_patches(base)),
        n_parameters=_count_written(variant),
        removed_runs=find_runs(source.plan["units"], n_layers),
        has_patches=bool(special_modules["patches"]),
        has_zeroed_sublayers=has_zeroed_sublayers,
        base_metadata=_read_card_metadata(Path(source.manifest["path"])),
        has_lookahead_heads=bool(getattr(base_config, "num_nextn_predict_layers", 0)),
        base_class=auto_class(base.config).__name__,
        vllm_obstacle=_explain_vllm_obstacle(variant),
        family=base_config.model_type,
        visits=list_visits(steps_of(base, source.plan["units"])),
        has_damped_layers=bool(special_modules["damped"]),
        layer_kinds=kinds_by_layer(base_config, n_layers),
        base_gguf_bytes=_count_gguf_bytes(Path(source.manifest["source"])),
        weights_bytes=_count_bytes(weights_files),
    )


def _count_written(variant: PreTrainedModel) -> int:
    """The number of parameters in the weights and patches of a checkpoint.

    A layer that runs several times is stored, and counted, several times.
    """
    n_written = sum(tensor.numel() for tensor in weights_and_patches(variant))
    earlier_weights: set[torch.Tensor] = set()
    for layer in layers_of(variant):
        layer_weights = set(layer.parameters())
        n_written += sum(weight.numel() for weight in layer_weights & earlier_weights)
        earlier_weights |= layer_weights
    return n_written


def _count_gguf_bytes(file: Path) -> int | None:
    """The bytes of a GGUF file with its shards; None if it is not one, or is not there any more."""
    if not is_gguf(file) or not file.is_file():
        return None
    return _count_bytes(shard_files(file))


def _count_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _explain_vllm_obstacle(variant: PreTrainedModel) -> str:
    """Why the Transformers backend of vLLM cannot run an export in form code; empty if it can."""
    obstacle = explain_vllm_obstacle(variant)
    if obstacle:
        return obstacle
    for module in modeling_lamina.describe(variant)["removed"].values():
        if "layer" in module:  # an attention
            return (
                "vLLM's Transformers backend wants attention in every layer, and layer "
                f"{module['layer']} has none."
            )
    return ""


def _lacks_sublayers(base: PreTrainedModel, units: Sequence[str]) -> bool:
    """Whether a layer that is kept has lost its attention or its MLP."""
    kept_layers = source_layers(base, units)
    cut_layers = {layer for layer, component in map(parse_unit, units) if component in SUBLAYERS}
    return not cut_layers.isdisjoint(kept_layers)


def _read_card_metadata(folder: Path) -> dict[str, Any]:
    """The metadata block at the head of the base model's card; empty where it has none."""
    try:
        return metadata_load(folder / "README.md") or {}
    except (FileNotFoundError, ValueError, yaml.YAMLError):
        return {}
