"""`lamina.load`: a variant, an export or a model folder as a normal transformers model and tokenizer."""

import functools
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.config.explain import nearest
from lamina.errors import LaminaError
from lamina.evaluation import assembly
from lamina.models.export import own_code
from lamina.models.export import save as export
from lamina.models.load import choose_device, load_folder, load_model, load_tokenizer, placement
from lamina.models.materialise import materialise
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study import paths
from lamina.study.variant import FORM, Variant


def load(
    what: str | Path,
    results: str | Path = "results",
    *,
    dtype: str = "auto",
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    load_in_4bit: bool = False,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model for a notebook, in evaluation mode, with its tokenizer.

    what: a folder with config.json (a model or an export), a model of the configuration by its name, or a variant
        `model/calibration/selector/removed=n/repair/healing`, whose files the workflow has made. Without the last two,
        the repair with the least loss on held-out documents is taken, none unless it lowers it, and no healing.
    results: the workflow's folder of results, where names and variants are looked up.
    dtype: float32, bfloat16 or float16; `auto` takes the folder's own, and for a variant the configuration's.
    device: `cpu` or `cuda`; by default the first GPU if there is one.
    device_map: spread over devices as accelerate does, `auto` or a mapping. Excludes `device`.
    load_in_4bit: quantise the weights on loading with bitsandbytes. For folders only.
    trust_remote_code: whether Python code in the folder may run. An export need not be trusted: lamina compares its
        modeling file with its own and runs that.

    Raises LaminaError if there is nothing of that name, a file of the variant is missing, or an option is not possible
    here.
    """
    if device is not None and (device_map is not None or load_in_4bit):
        raise LaminaError("give device, or device_map or load_in_4bit, not both.")
    options = placement(device_map, load_in_4bit, dtype)
    folder = Path(what)
    if (folder / "config.json").is_file():
        own = not trust_remote_code and (folder / own_code.CODE).is_file()
        classes = own_code.classes(folder) if own else None
        model = load_folder(folder, dtype, trust_remote_code, classes=classes, **options)
        if not options:
            torch.nn.Module.to(model, choose_device(device))
        manifest = {
            "path": str(folder),
            "source": str(folder),
            "trust_remote_code": trust_remote_code,
        }
        return model, load_tokenizer(manifest, model.config)
    manifest, variant = _find(str(what), Path(results))
    if load_in_4bit:
        whole = variant is None or variant.is_base
        remedy = (
            f"Load its folder: {manifest['path']}"
            if whole
            else f"make export VARIANT={variant}, and load its folder"
        )
        raise LaminaError(
            f"weights are quantised as they are read from a folder, and '{what}' is a name. {remedy}."
        )
    manifest |= {} if dtype == "auto" else {"dtype": dtype}
    on = torch.device("cpu") if options else choose_device(device)
    model = load_model(manifest, on)
    if variant is not None:
        parts = assembly.read(variant, results)
        for record in (parts.plan or {}).get("replacements", {}).values():
            record |= {"path": _here(record["path"], Path(results))} if "path" in record else {}
        model = materialise(model, parts.plan, parts.patches, parts.adapter)
        # A model saved from a notebook is written and refused as an export is: a plain checkpoint would lose its patch,
        # and layers of some families compute with their number.
        model.__dict__["save_pretrained"] = functools.partial(
            export.save_checked, model, functools.partial(load_model, manifest, on)
        )
    return _spread(model, device_map), load_tokenizer(manifest)


def _find(name: str, results: Path) -> tuple[dict[str, Any], Variant | None]:
    """The manifest of a model or variant by its name, and the variant. All files of the variant exist."""
    model, *rest = name.strip("/").split("/")
    if len(rest) == 3 and rest[2].startswith("removed="):
        name = _mended(name.strip("/"), results)
    manifest = Path(paths.manifest(model, results))
    try:
        variant = Variant.parse(name) if rest else None
    except LaminaError:
        variant = None
    if (rest and variant is None) or not manifest.is_file():
        known = sorted(path.parent.name for path in (results / "models").glob("*/manifest.json"))
        raise LaminaError(
            f"'{name}' is neither a folder with config.json nor known under {results}/. Write a folder, a variant as "
            f"{FORM}, or one of the models: {', '.join(known) or 'none is there, run the workflow or give results='}."
        )
    if variant is not None:
        files = paths.variant_files(variant, results)
        for file in (files.plan, files.patch, files.adapter):
            if file and not Path(file).exists():
                raise LaminaError(
                    f"{file} is not there, so the variant '{name}' has not been made.{_or_near(Path(file))} Put it "
                    f"into a study of the configuration and run the workflow{_or_export(variant, results)}."
                )
    facts = seal.read_json(manifest)
    return facts | {"path": _here(facts["path"], results)}, variant


def _mended(name: str, results: Path) -> str:
    """The name of a plan, with the repair that lowers its loss on held-out documents most, or `none`."""
    key, _, removed = name.rpartition("/removed=")
    plan, tables = (
        Path(paths.plan(key, removed, results)),
        Path(paths.patch_table(key, "any", results)).parent,
    )
    rows = [
        row for file in sorted(tables.glob("*.parquet")) for row in store.read(file).to_pylist()
    ]
    losses = {
        row["repair"]: row
        for row in rows
        if str(row["removed"]) == removed and row["loss_bare"] is not None
    }
    changes = {"none": 0.0} | {
        repair: row["loss_repaired"] - row["loss_bare"] for repair, row in losses.items()
    }
    chosen = seal.read_json(plan).get("choice") if plan.is_file() else None
    repair = chosen["repair"] if chosen else min(changes, key=lambda each: changes[each])
    logging.getLogger(__name__).warning("%s is loaded with repair: %s", name, repair)
    return f"{name}/{repair}/none"


def _here(path: str, results: Path) -> str:
    """The folder of a model, whose path is relative to the parent of the results folder."""
    return str(results.absolute().parent / path)


def _or_near(missing: Path) -> str:
    """A hint at the nearest existing name, if a name in the path is misspelt."""
    while not missing.parent.is_dir():
        missing = missing.parent
    known = sorted({file.stem for file in missing.parent.iterdir()})
    return (
        ""
        if not known or missing.name.startswith("removed=")
        else f" {nearest(missing.stem, known)}"
    )


def _or_export(variant: Variant, results: Path) -> str:
    """A hint at an export, where an export helps: only studies make repairs, trainings and searched plans."""
    selected = Path(paths.plan(variant.key, variant.removed, results)).parent.is_dir()
    searched = Path(paths.search(variant.key, results)).exists()
    if not selected or searched or (variant.repair, variant.healing) != ("none", "none"):
        return ""
    return f", or run: make export VARIANT={variant}"


def _spread(model: PreTrainedModel, device_map: str | dict[str, Any] | None) -> PreTrainedModel:
    """Spread the model over several devices. This follows surgery, because accelerate wraps the existing modules."""
    if device_map is None:
        return model
    from accelerate import dispatch_model, infer_auto_device_map  # type: ignore[import-untyped]

    places = device_map
    if isinstance(device_map, str):
        places = infer_auto_device_map(
            model, no_split_module_classes=list(model._no_split_modules or ())
        )
    dispatched: PreTrainedModel = dispatch_model(model, places)
    return dispatched
