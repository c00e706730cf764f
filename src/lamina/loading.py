"""`lamina.load`: load a variant, an export or a model folder as a normal transformers model.

The tokenizer is loaded too.
"""

import functools
import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina import paths
from lamina.errors import LaminaError
from lamina.evaluation import assembly
from lamina.models.export import own_code
from lamina.models.export.save import save_checked
from lamina.models.load import (
    choose_device,
    load_folder,
    load_model,
    load_tokenizer,
    placement_options,
)
from lamina.models.materialise import materialise
from lamina.options.explain import suggest
from lamina.store import checksum, parquet
from lamina.variant import FORM, Variant


class NamedModel(NamedTuple):
    """What a name under the results folder stands for."""

    manifest: dict[str, Any]
    """Manifest of the base model, with an absolute `path`."""
    variant: Variant | None
    """None if the name is that of a base model."""


def load(
    name_or_path: str | Path,
    results: str | Path = "results",
    *,
    dtype: str = "auto",
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    load_in_4bit: bool = False,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model for a notebook, in evaluation mode, with its tokenizer.

    Args:
        name_or_path: A folder with config.json (a model or an export), the name of a model in the
            configuration, or a variant `model/calibration/selector/removed=n/repair/healing` whose
            files the workflow has made. If the last two are left out, the repair with the least
            loss on held-out documents is used (none if no repair lowers it), and no healing.
        results: The workflow's results folder, where names and variants are looked up.
        dtype: float32, bfloat16 or float16; `auto` uses the folder's own, and for a variant the
            configuration's.
        device: `cpu` or `cuda`; by default the first GPU if there is one.
        device_map: Spread over devices as accelerate does, `auto` or a mapping. Excludes `device`.
        load_in_4bit: Quantise the weights on loading with bitsandbytes. For folders only.
        trust_remote_code: Whether Python code in the folder may run. An export need not be
            trusted: lamina compares its modeling file with its own and runs that.

    Returns:
        The model and its tokenizer.

    Raises LaminaError if there is nothing of that name, a file of the variant is missing, or an
    option is not possible here.
    """
    if device is not None and (device_map is not None or load_in_4bit):
        raise LaminaError("give device, or device_map or load_in_4bit, not both.")
    options = placement_options(device_map, load_in_4bit, dtype)
    folder = Path(name_or_path)
    if (folder / "config.json").is_file():
        return _load_from_folder(folder, dtype, device, options, trust_remote_code)

    named = find_by_name(str(name_or_path), Path(results))
    if load_in_4bit:
        raise _refuse_4bit(str(name_or_path), named)
    if dtype != "auto":
        named.manifest["dtype"] = dtype
    # accelerate wraps existing modules, so a model is spread over devices after layers are removed.
    surgery_device = choose_device(device) if device_map is None else torch.device("cpu")
    model = load_model(named.manifest, surgery_device)
    if named.variant is not None:
        model = _make_variant(model, named.manifest, named.variant, Path(results), surgery_device)
    if device_map is not None:
        model = _spread(model, device_map)
    return model, load_tokenizer(named.manifest)


def _load_from_folder(
    folder: Path,
    dtype: str,
    device: str | torch.device | None,
    options: dict[str, Any],
    trust_remote_code: bool,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model or an export from its folder; `options` are those of `placement`."""
    classes = None
    if (folder / own_code.CODE).is_file() and not trust_remote_code:
        classes = own_code.load_classes(folder)
    model = load_folder(folder, dtype, trust_remote_code, classes=classes, **options)
    if not options:
        torch.nn.Module.to(model, choose_device(device))
    manifest = {
        "path": str(folder),
        "source": str(folder),
        "trust_remote_code": trust_remote_code,
    }
    return model, load_tokenizer(manifest, model.config)


def _make_variant(
    base: PreTrainedModel,
    manifest: dict[str, Any],
    variant: Variant,
    results: Path,
    device: torch.device,
) -> PreTrainedModel:
    """The variant of a base model, made from its files under `results`."""
    parts = assembly.read_parts(variant, paths.variant_files(variant, results))
    if parts.plan is not None:
        for donor in parts.plan.get("replacements", {}).values():
            donor["path"] = _locate_model(donor["path"], results)
    model = materialise(base, *parts)
    # A model saved from a notebook is written or refused as in an export. A plain checkpoint would
    # lose its patch, and layers of some families compute with their number.
    load_base = functools.partial(load_model, manifest, device)
    model.__dict__["save_pretrained"] = functools.partial(save_checked, model, load_base)
    return model


def _spread(model: PreTrainedModel, device_map: str | dict[str, Any]) -> PreTrainedModel:
    """Spread a model over several devices."""
    from accelerate import dispatch_model, infer_auto_device_map  # type: ignore[import-untyped]

    if isinstance(device_map, str):
        unsplit_classes = list(model._no_split_modules or ())
        device_map = infer_auto_device_map(model, no_split_module_classes=unsplit_classes)
    dispatched: PreTrainedModel = dispatch_model(model, device_map)
    return dispatched


def find_by_name(name: str, results: Path) -> NamedModel:
    """The model or variant with a name; all of its files exist."""
    model_name, *variant_names = name.strip("/").split("/")
    is_plan = len(variant_names) == 3 and variant_names[2].startswith("removed=")
    if is_plan:
        name = _add_best_repair(name.strip("/"), results)
    variant = None
    if variant_names:
        try:
            variant = Variant.parse(name)
        except LaminaError:
            raise _refuse_name(name, results) from None
    manifest_file = Path(paths.manifest(model_name, results))
    if not manifest_file.is_file():
        raise _refuse_name(name, results)
    if variant is not None:
        _check_files(variant, name, results)

    manifest = checksum.read_json(manifest_file)
    manifest["path"] = _locate_model(manifest["path"], results)
    return NamedModel(manifest, variant)


def _add_best_repair(plan_name: str, results: Path) -> str:
    """The name of a variant of a plan, with its best repair.

    This is the repair that was chosen together with the plan; else the one that lowers the loss on
    held-out documents most, or `none`.
    """
    key, _, removed = plan_name.rpartition("/removed=")
    plan_file = Path(paths.plan(key, removed, results))
    choice = checksum.read_json(plan_file).get("choice") if plan_file.is_file() else None
    if choice:
        repair = choice["repair"]
    else:
        loss_changes = {"none": 0.0} | _read_loss_changes(key, removed, results)
        repair = min(loss_changes, key=lambda name: loss_changes[name])
    logging.getLogger(__name__).warning("%s is loaded with repair: %s", plan_name, repair)
    return f"{plan_name}/{repair}/none"


def _read_loss_changes(key: str, removed: str, results: Path) -> dict[str, float]:
    """The change of a plan's loss on held-out documents by each repair.

    key: `model/calibration/selector`.
    """
    tables = Path(paths.patch_table(key, "any", results)).parent
    changes: dict[str, float] = {}
    for file in sorted(tables.glob("*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            if str(row["removed"]) == removed and row["loss_bare"] is not None:
                changes[row["repair"]] = row["loss_repaired"] - row["loss_bare"]
    return changes


def _locate_model(path: str, results: Path) -> str:
    """The folder of a model, from a path relative to the parent of the results folder."""
    return str(results.absolute().parent / path)


def _check_files(variant: Variant, name: str, results: Path) -> None:
    """Refuse a variant if one of its files is missing."""
    for file in paths.variant_files(variant, results).listed():
        if not Path(file).exists():
            raise LaminaError(
                f"{file} does not exist, so the variant '{name}' has not been made."
                f"{_suggest_name(Path(file))} Put it into a study of the configuration and run the "
                f"workflow{_suggest_export(variant, results)}."
            )


def _refuse_name(name: str, results: Path) -> LaminaError:
    models = sorted(path.parent.name for path in (results / "models").glob("*/manifest.json"))
    known = ", ".join(models) or "none yet, so run the workflow or give results="
    return LaminaError(
        f"'{name}' is neither a folder with config.json nor known under {results}/. Write a "
        f"folder, a variant as {FORM}, or one of the models: {known}."
    )


def _refuse_4bit(name: str, named: NamedModel) -> LaminaError:
    remedy = f"Load its folder: {named.manifest['path']}"
    if named.variant is not None and not named.variant.is_base:
        remedy = f"lamina export {named.variant}, and load its folder"
    return LaminaError(
        f"load_in_4bit needs a folder to read weights from, but '{name}' is a name. {remedy}."
    )


def _suggest_name(missing: Path) -> str:
    """A hint at the nearest existing name, if a name in the path is misspelt."""
    while not missing.parent.is_dir():
        missing = missing.parent
    known_names = sorted({file.stem for file in missing.parent.iterdir()})
    if not known_names or missing.name.startswith("removed=") or missing.stem == "training":
        return ""
    return f" {suggest(missing.stem, known_names)}"


def _suggest_export(variant: Variant, results: Path) -> str:
    """A hint at `lamina export`, where it helps.

    Only studies make repairs, healings and searched plans.
    """
    is_selected = Path(paths.plan(variant.key, variant.removed, results)).parent.is_dir()
    is_searched = Path(paths.search(variant.key, results)).exists()
    is_bare = variant.repair == variant.healing == "none"
    if not is_selected or is_searched or not is_bare:
        return ""
    return f", or run: lamina export {variant}"
