"""Writing a variant as a Hugging Face checkpoint: stock where transformers has a place for everything, else with code.

Pruned and healed layers make a **stock** checkpoint. A patch needs the small modeling file beside the weights
(`modeling_lamina.py`, form **code**); without it the checkpoint does not load, so that a patch is never lost. Removed
attention or MLP halves are written as zero weights into a stock checkpoint, or left out in form code.
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

import transformers
import yaml
from huggingface_hub import metadata_load
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Repairing, weights_and_patches
from lamina.models.cutting import kinds
from lamina.models.export import gguf_file, modeling_lamina, own_code
from lamina.models.export.card import Facts, Source, card, mergekit
from lamina.models.export.check import check_export
from lamina.models.gguf import SUFFIX, check_cut, is_gguf, shard_files
from lamina.models.load import load_folder
from lamina.models.manifest import auto_class
from lamina.models.materialise import materialise
from lamina.models.structure import halves, layers_of, text_config
from lamina.models.surgery import LAYER_INDEX_ATTRIBUTES, kept_layers, runs
from lamina.models.units import parse
from lamina.study.variant import EXPORTED_AS
from lamina.version import VERSION

RECORD = "lamina.json"

# Weights as transformers names them.
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?[.]safetensors([.]index[.]json)?")
# Files of a tokenizer, a chat or a licence in a model's folder, copied as they are.
_CARRIED = re.compile(
    r"(tokenizer.*|special_tokens_map|added_tokens|vocab|preprocessor_config|chat_template|generation_config)\.json"
    r"|merges\.txt|vocab\.txt|tokenizer\.model.*|.*\.tiktoken|.*\.jinja|(LICEN[CS]E|NOTICE|USE_POLICY).*"
)


def export(
    base: PreTrainedModel,
    source: Source,
    folder: str | Path,
    patches: Mapping[Boundary, Repairing] | None = None,
    adapter: str | Path | None = None,
    form: str = "auto",
    max_shard_size: str = "5GB",
) -> str:
    """Write a variant of `base` with its tokenizer, model card and mergekit recipe; returns its form.

    base: the unpruned model; it is not changed.
    folder: where to write. It must be absent, empty or an earlier export, which is replaced when all is written.
    patches, adapter: as for `materialise`; the adapter is merged.
    form: `auto` is stock unless a patch of the stream is left in the model (a repair that is folded into weights leaves
        none); `code` also leaves removed halves out instead of zeroing them; `gguf` takes layers out of the GGUF file
        that is the source.
    max_shard_size: largest weights file, such as 5GB.

    Raises LaminaError if the parts do not fit together, the form cannot hold the variant, `folder` holds something
    else, or the checkpoint loads back as another model. Then no checkpoint is left behind.
    """
    target = Path(folder)
    _check(base, form, target)
    if form == "gguf":
        check_cut(
            source.variant,
            source.manifest["source"],
            source.plan["kind"],
            bool(source.plan.get("replacements")),
        )
    variant = materialise(base, source.plan, patches, adapter)
    patched = bool(modeling_lamina.describe(variant)["patches"])
    if form == "stock" and patched:
        raise LaminaError(
            "a stock checkpoint has no place for a patch, which a reload would then lose. Export it with form=auto (it "
            "brings its modeling file and loads with trust_remote_code=True), or export the variant with repair none."
        )
    if form == "stock" or (form == "auto" and not patched):
        _zero_halves(variant, base, source.plan)
    target.parent.mkdir(parents=True, exist_ok=True)
    # All processes use one name, so that an export removes what a killed one left behind.
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        if form == "gguf":
            kept = kept_layers(base, source.plan["units"])
            gguf_file.save(variant, base, kept, Path(source.manifest["source"]), temporary)
            written = form
        else:
            written = save(variant, temporary, max_shard_size, Path(source.manifest["path"]))
            check_export(variant, base, lambda: load_folder(temporary, "auto", written == "code"))
        _document(source, temporary, base, variant, written)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written


def save(
    variant: PreTrainedModel,
    folder: str | Path,
    max_shard_size: str = "5GB",
    carried: Path | None = None,
) -> str:
    """Write a materialised variant's weights, configuration and, if it needs it, code; returns stock or code.

    `carried` is the base model's folder, whose tokenizer, generation configuration and licence are copied.

    Raises LaminaError if the variant needs code and its class is not one of transformers' own.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    # Save a shallow copy, since saving writes dtype and architecture into the configuration.
    shell = copy.copy(variant)
    shell.__dict__["config"] = copy.deepcopy(variant.config)
    if carried is not None and (carried / "generation_config.json").is_file():
        # The file is copied below as it is, because transformers refuses to save some published ones.
        shell.__dict__["generation_config"] = GenerationConfig()
    described = modeling_lamina.describe(variant)
    plain = not described["removed"] and not described["patches"]
    # Without its family's name a model gets no renaming on loading, so its weights keep the names they have here.
    PreTrainedModel.save_pretrained(
        shell, target, max_shard_size=max_shard_size, save_original_format=plain
    )
    if carried is not None:
        for file in sorted(carried.iterdir()):
            if file.is_file() and _CARRIED.fullmatch(file.name):
                shutil.copyfile(file, target / file.name)
    if not plain:
        _add_code(variant, target, described)
        _name_tokenizer(variant, target)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)
    return "stock" if plain else "code"


def save_checked(
    variant: PreTrainedModel,
    load_base: Callable[[], PreTrainedModel],
    folder: str | Path,
    max_shard_size: str = "5GB",
) -> str:
    """Write a variant as `save` does, unless it loads back as another model; returns stock or code.

    load_base: gives the base model, which is loaded for the check alone, after the variant is written.
    folder: where to write. Weights of a model that are there already are replaced, other files stay.

    Raises LaminaError as `save` and `check_export` do. The folder is then as it was.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
        form = save(variant, temporary, max_shard_size)
        check_export(variant, load_base(), lambda: load_folder(temporary, "auto", form == "code"))
        for file in list(target.iterdir()):
            if _WEIGHTS.fullmatch(file.name):
                file.unlink()
        for file in sorted(Path(temporary).iterdir()):
            os.replace(file, target / file.name)
    if form == "code":
        _name_tokenizer(variant, target)
    return form


def _check(base: PreTrainedModel, form: str, target: Path) -> None:
    if form not in EXPORTED_AS:
        raise LaminaError(
            f"there is no form '{form}' of an export. Write one of: {', '.join(EXPORTED_AS)}."
        )
    if getattr(base.config, "auto_map", None):
        raise LaminaError(
            f"{type(base).__name__} comes from Python code in the model's folder. Export knows models whose class is "
            "part of transformers."
        )
    if target.is_dir() and any(target.iterdir()) and not (target / RECORD).is_file():
        raise LaminaError(f"{target} is not empty and is not an export. Choose another folder.")


def _add_code(variant: PreTrainedModel, target: Path, described: dict[str, Any]) -> None:
    """Put the modeling file beside the weights and write a configuration that only this file understands."""
    # The class of transformers stands behind the sub-classes that lamina gives a variant.
    stock = next(
        each.__name__
        for each in type(variant).__mro__
        if each.__module__.startswith("transformers.")
    )
    kind, model_type = type(variant.config), f"lamina_{variant.config.model_type}"
    if not (hasattr(transformers, kind.__name__) and hasattr(transformers, stock)):
        raise LaminaError(
            f"{stock} is not part of transformers, so a patched or halved variant of it cannot be exported. "
            "Remove whole layers with repair none, or keep the variant as it is: lamina.load loads it."
        )
    code = own_code.source(kind.__name__, stock, model_type)
    (target / own_code.CODE).write_text(code, encoding="utf-8")
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    holder, field = modeling_lamina.refused_field(kind)
    heads = (config[holder] if holder else config)[field]
    config = modeling_lamina.refusing(config, kind, modeling_lamina.REFUSAL) | {
        "model_type": model_type,
        "architectures": ["LaminaForCausalLM"],
        "auto_map": own_code.AUTO_MAP,
        "lamina": described | {"heads": heads},
    }
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _name_tokenizer(variant: PreTrainedModel, target: Path) -> None:
    """Write down the tokenizer's class, since transformers cannot look it up by a model type that it does not know."""
    path = target / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if "tokenizer_class" in settings or not (target / "tokenizer.json").is_file():
        return
    tokenizer = AutoTokenizer.from_pretrained(target, config=variant.config, local_files_only=True)
    path.write_text(
        json.dumps(settings | {"tokenizer_class": type(tokenizer).__name__}, indent=2) + "\n",
        "utf-8",
    )


def _zero_halves(variant: PreTrainedModel, base: PreTrainedModel, plan: Mapping[str, Any]) -> None:
    """Replace each removed half by the base model's module with all weights zero, so that it adds zero as well."""
    originals = layers_of(base)
    numbers = kept_layers(base, plan["units"])
    for position, (number, layer) in enumerate(zip(numbers, layers_of(variant), strict=True)):
        for name, module in list(layer.named_children()):
            original = originals[number].get_submodule(name)
            if type(module) is type(original):
                continue
            silent = copy.deepcopy(original)
            for part in silent.modules():
                for key, weight in list(part.named_parameters(recurse=False)):
                    setattr(
                        part,
                        key,
                        nn.Parameter(weight.detach().clone().zero_(), requires_grad=False),
                    )
                for key in LAYER_INDEX_ATTRIBUTES:
                    if isinstance(getattr(part, key, None), int):
                        setattr(part, key, position)
            setattr(layer, name, silent)


def _document(
    source: Source, folder: Path, base: PreTrainedModel, variant: PreTrainedModel, form: str
) -> None:
    depth = len(layers_of(base))
    kept = kept_layers(base, source.plan["units"])
    halved = _halves(base, source.plan["units"], kept)
    file = Path(source.manifest["source"])
    counts = [
        sum(tensor.numel() for tensor in weights_and_patches(model)) for model in (base, variant)
    ]
    facts = Facts(
        **vars(source),
        form=form,
        parameters=(counts[0], counts[1]),
        boundaries=runs(source.plan["units"], depth),
        patched=bool(modeling_lamina.describe(variant)["patches"]),
        zeroed=form == "stock" and bool(halved),
        base_card=_front_matter(Path(source.manifest["path"])),
        predicts_ahead=bool(getattr(text_config(base), "num_nextn_predict_layers", 0)),
        base_class=auto_class(base.config).__name__,
        unserved=_unserved(variant),
        family=text_config(base).model_type,
        kept=kept,
        kinds=kinds(text_config(base), depth),
        base_size=_stored_bytes(file) if is_gguf(file) else None,
        size=sum(
            each.stat().st_size
            for each in folder.iterdir()
            if each.suffix in (".safetensors", SUFFIX)
        ),
    )
    (folder / "README.md").write_text(card(facts), encoding="utf-8")
    if form != "gguf":
        (folder / "mergekit.yaml").write_text(mergekit(facts, halved), encoding="utf-8")
    record = {
        "variant": str(source.variant),
        "form": form,
        "lamina": VERSION,
        "base": {key: source.manifest.get(key) for key in ("source", "revision", "weights_sha256")},
        "plan": dict(source.plan),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _stored_bytes(file: Path) -> int:
    """The size of a GGUF file, or of all its shards."""
    return sum(shard.stat().st_size for shard in shard_files(file))


def _unserved(variant: PreTrainedModel) -> str:
    """Why the Transformers backend of vLLM cannot run an export in form code; empty if it can, as its source says."""
    config = text_config(variant)
    bare = [
        part["layer"]
        for part in modeling_lamina.describe(variant)["removed"].values()
        if "layer" in part
    ]
    odd = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if config is not variant.config:
        return "Code beside a model that sees or hears was not tried there."
    # gpt2 says that it is, and its attention fails there on the shape of its queries.
    if not variant.is_backend_compatible() or config.model_type == "gpt2":
        return "The attention of this family is not called in the way that vLLM's Transformers backend replaces."
    if odd:
        return f"vLLM's Transformers backend knows full and sliding attention, and not {min(odd)}."
    return (
        f"vLLM's Transformers backend wants attention in every layer, and layer {bare[0]} has none."
        if bare
        else ""
    )


def _halves(
    base: PreTrainedModel, units: Sequence[str], kept: Sequence[int]
) -> dict[int, list[str]]:
    """Sub-module names of removed halves, by layer that stays."""
    halved: dict[int, list[str]] = {}
    for layer, component in sorted(map(parse, units)):
        for half in halves(layers_of(base)[layer]).get(component, ()) if layer in kept else ():
            halved.setdefault(layer, []).append(f"{half.name}.")
    return halved


def _front_matter(folder: Path) -> dict[str, Any]:
    """The metadata block at the head of the base model's card; empty where it has none."""
    try:
        return metadata_load(folder / "README.md") or {}
    except (FileNotFoundError, ValueError, yaml.YAMLError):
        return {}
