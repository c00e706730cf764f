"""The path of every file under `results/`, as functions of names.

A `key` is the key of a plan: `model/calibration/selector`. `results` is the results folder.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lamina.errors import LaminaError
from lamina.variant import Variant

_SOURCE = Path(__file__).resolve().parents[1]


def find_project(source: Path) -> Path:
    """The folder of rules, scripts, SQL and the embedded study.

    source: The folder that contains the packages: `src` of a clone, or that of an installation.
    """
    installed_project = source / "lamina_workflow/project"
    return installed_project if installed_project.is_dir() else source.parent


PROJECT = find_project(_SOURCE)
PLUGINS = "LAMINA_PLUGINS"
"""Environment variable: folders that add modules to lamina's packages."""


def plugin_folders() -> list[Path]:
    """The folders with modules outside lamina; each contains `lamina/…/NAME.py`, as `src` does."""
    written = os.environ.get(PLUGINS, "")
    return [Path(folder).expanduser().resolve() for folder in written.split(os.pathsep) if folder]


def plugin_packages(package: str) -> list[str]:
    """What the plug-in folders add to the `__path__` of a package."""
    folders = [folder.joinpath(*package.split(".")) for folder in plugin_folders()]
    return [str(folder) for folder in folders if folder.is_dir()]


def locate(file: str) -> str:
    """The path of a file of lamina itself.

    It is relative if a run starts in lamina's folder, and absolute if a workflow in another folder
    uses lamina as a module.
    """
    return file if Path(file).exists() else str(PROJECT / file)


RESULTS = "results"


def any_of(names: Iterable[str], *more: str) -> str:
    """A wildcard constraint that allows these names, the expressions `more`, and nothing else."""
    escaped = [re.escape(name) for name in names]
    return "|".join([*escaped, *more]) or "(?!)"


def study_name(files: Iterable[str | Path], results: str | Path = RESULTS) -> str:
    """The name under which tables of these configuration files are kept: a folder and a schema.

    Raises LaminaError if the file names do not give a valid name.
    """
    name = "+".join(Path(file).stem for file in files)
    if not name or not name.isprintable() or name.startswith(".") or len(name) > 100:
        raise LaminaError(
            f"the configuration file's name without its ending, {name!r}, cannot name a folder and "
            "a schema of the database. Rename the file, for example to mine.yaml."
        )

    folder = Path(results, "studies")
    kept_studies = sorted(folder.iterdir()) if folder.is_dir() else []
    for kept_study in kept_studies:
        if kept_study.name != name and kept_study.name.lower() == name.lower():
            raise LaminaError(
                f"{folder} already holds a study '{kept_study.name}', which is the same name to "
                f"DuckDB as '{name}'. Rename the configuration file, or delete {kept_study}."
            )
    return name


def manifest(model: str, results: str | Path = RESULTS) -> str:
    """What a model is: its path, revision, shapes and the hash of its weights."""
    return f"{results}/models/{model}/manifest.json"


def calibration(model: str, calibration: str, results: str | Path = RESULTS) -> str:
    """Tokenised samples."""
    return f"{results}/calibrations/{model}/{calibration}.parquet"


def overlap(model: str, calibration: str, task: str) -> str:
    """The check that a calibration holds no document of a task."""
    return f"{RESULTS}/overlap/{model}/{calibration}/{task}.json"


def activations(model: str, calibration: str) -> str:
    """Similarities of all pairs of boundaries of the base model."""
    return f"{RESULTS}/activations/{model}/{calibration}.parquet"


def diagnosis(model: str, calibration: str, diagnosis: str) -> str:
    """The measurements of a diagnosis, layer by layer."""
    return f"{RESULTS}/diagnoses/{model}/{calibration}/{diagnosis}.parquet"


def sweep(key: str, removed: int | str) -> str:
    """The removal of every remaining unit, sample by sample."""
    return f"{RESULTS}/sweeps/{key}/removed={removed}.parquet"


def sweep_block(key: str, removed: int | str, block: int | str) -> str:
    """One job's block of a sweep."""
    return f"{RESULTS}/sweeps/{key}/removed={removed}/block={block}.parquet"


def relevance(key: str, removed: int | str) -> str:
    """The scores of every unit by all metrics that a sweep measured."""
    return f"{RESULTS}/relevance/{key}/removed={removed}.parquet"


def plan(key: str, removed: int | str, results: str | Path = RESULTS) -> str:
    """The units that are removed at one size."""
    return f"{results}/plans/{key}/removed={removed}.json"


def search(key: str, results: str | Path = RESULTS) -> str:
    """Every set that a searching selector tried, for all sizes."""
    return f"{results}/searches/{key}.parquet"


def patch(key: str, repair: str, results: str | Path = RESULTS) -> str:
    """The fitted tensors of a repair, for all sizes of a selector."""
    return f"{results}/patches/{key}/{repair}.safetensors"


def patch_table(key: str, repair: str, results: str | Path = RESULTS) -> str:
    """How well each patch fits."""
    return f"{results}/patches/{key}/{repair}.parquet"


def adapter(
    key: str, removed: int | str, repair: str, healing: str, results: str | Path = RESULTS
) -> str:
    """The folder of the weights that a healing trained."""
    return f"{results}/adapters/{key}/removed={removed}/{repair}/{healing}"


def training(folder: str) -> str:
    """The training curve in an adapter's folder, which a healing writes last."""
    return f"{folder}/training.parquet"


def adapter_weights(folder: str) -> list[str]:
    """Weights and settings in an adapter's folder, as PEFT names them."""
    return [f"{folder}/adapter_model.safetensors", f"{folder}/adapter_config.json"]


def benchmark(model: str, calibration: str, task: str, block: int | str) -> str:
    """One task on a block of a calibration's variants; calibration `none` for the base model."""
    return f"{RESULTS}/benchmarks/{model}/{calibration}/{task}/block={block}.parquet"


def benchmark_samples(model: str, calibration: str, task: str, block: int | str) -> str:
    """The same, document by document."""
    return f"{RESULTS}/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet"


def generation(model: str, calibration: str, task: str, block: int | str) -> str:
    """The answers to one task that a block of a calibration's variants writes."""
    return f"{RESULTS}/generation/{model}/{calibration}/{task}/block={block}.parquet"


def generation_samples(model: str, calibration: str, task: str, block: int | str) -> str:
    """The same, document by document."""
    return f"{RESULTS}/generation/{model}/{calibration}/{task}/block={block}.samples.parquet"


def efficiency(model: str) -> str:
    """Speed and memory of all variants of a model."""
    return f"{RESULTS}/efficiency/{model}.parquet"


def export(variant: Variant | str) -> str:
    """The folder of an exported checkpoint."""
    return f"{RESULTS}/exports/{variant}"


def lm_eval(variant: Variant | str) -> str:
    """The folder of lm-eval's files of a variant: its scores, and each question with its answers."""
    return f"{RESULTS}/lm_eval/{variant}"


class VariantFiles(NamedTuple):
    """The files of a variant; None for parts that it does not have. `adapter` is a folder."""

    plan: str | None
    patch: str | None
    adapter: str | None

    def listed(self) -> list[str]:
        """The inputs of a rule: the training curve, written last, represents an adapter."""
        curve = training(self.adapter) if self.adapter else None
        return [file for file in (self.plan, self.patch, curve) if file]

    @classmethod
    def take(cls, variant: Variant, files: Iterator[str]) -> "VariantFiles":
        """The files of a variant, taken from the front of the `listed` files of several."""
        plan_file = None if variant.is_base else next(files)
        patch_file = None if variant.repair == "none" else next(files)
        curve = None if variant.healing == "none" else next(files)
        return cls(plan_file, patch_file, str(Path(curve).parent) if curve else None)


def variant_files(variant: Variant, results: str | Path = RESULTS) -> VariantFiles:
    """The files that a variant is made from."""
    plan_file = None
    patch_file = None
    adapter_folder = None
    if not variant.is_base:
        plan_file = plan(variant.key, variant.removed, results)
    if variant.repair != "none":
        patch_file = patch(variant.key, variant.repair, results)
    if variant.healing != "none":
        adapter_folder = adapter(
            variant.key, variant.removed, variant.repair, variant.healing, results
        )
    return VariantFiles(plan_file, patch_file, adapter_folder)
