"""The path grammar under `results/`, written once. Rules use it with wildcards in the place of names.

`removed` and `block` may be numbers or wildcards such as `{removed}`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import LaminaError
from lamina.study.variant import Variant

REPOSITORY = Path(__file__).resolve().parents[3]


def own(file: str) -> str:
    """A file of lamina itself: a relative path where a run starts in lamina's folder, absolute where a workflow of
    another folder uses lamina as a module."""
    return file if Path(file).exists() else str(REPOSITORY / file)


RESULTS = "results"
VIEWS = own("sql/views.sql")
KEY = "{model}/{calibration}/{selector}"  # of a plan, in a rule's wildcards


@dataclass(frozen=True)
class VariantFiles:
    """The files of a variant; None for a part that it does not have. `adapter` is a folder."""

    plan: str | None
    patch: str | None
    adapter: str | None


def any_of(names: Iterable[str], *more: str) -> str:
    """A wildcard constraint that allows these names, the expressions `more`, and nothing else."""
    return "|".join([*map(re.escape, names), *more]) or "(?!)"


def study(files: Iterable[str | Path], results: str | Path = RESULTS) -> str:
    """The name under which the tables of these configuration files are kept: a folder, and a schema of the database.

    Raises LaminaError if the files' names do not make one.
    """
    name = "+".join(Path(file).stem for file in files)
    if not name or not name.isprintable() or name.startswith(".") or len(name) > 100:
        raise LaminaError(
            f"the configuration file's name without its ending, {name!r}, cannot name a folder and a schema of the "
            "database. Rename the file, such as mine.yaml."
        )
    kept = Path(results, "studies")
    for other in sorted(kept.iterdir()) if kept.is_dir() else ():
        if other.name != name and other.name.lower() == name.lower():
            raise LaminaError(
                f"{kept} holds a study '{other.name}' already, and DuckDB takes '{name}' for the same. Rename the "
                f"configuration file, or delete {other}."
            )
    return name


def manifest(model: str, results: str | Path = RESULTS) -> str:
    """The manifest of a model: what its folder holds."""
    return f"{results}/models/{model}/manifest.json"


def check(model: str, results: str | Path = RESULTS) -> str:
    """What the check of a model found."""
    return f"{results}/models/{model}/check.json"


def checkpoint(model: str, results: str | Path = RESULTS) -> str:
    """The folder of a model that came as a GGUF file, dequantised."""
    return f"{results}/models/{model}/checkpoint"


def calibration(model: str, name: str, results: str | Path = RESULTS) -> str:
    """Tokenised samples."""
    return f"{results}/calibrations/{model}/{name}.parquet"


def task(name: str, results: str | Path = RESULTS) -> str:
    """Hashes of the documents of a task or perplexity text."""
    return f"{results}/tasks/{name}.parquet"


def overlap(model: str, calibration: str, task: str, results: str | Path = RESULTS) -> str:
    """The check that a calibration holds no document of a task."""
    return f"{results}/overlap/{model}/{calibration}/{task}.json"


def activations(model: str, calibration: str, results: str | Path = RESULTS) -> str:
    """Similarity of all pairs of boundaries."""
    return f"{results}/activations/{model}/{calibration}.parquet"


def sweep(key: str, removed: int | str, results: str | Path = RESULTS) -> str:
    """Every remaining unit's removal; `key` is model/calibration/selector."""
    return f"{results}/sweeps/{key}/removed={removed}.parquet"


def sweep_block(key: str, removed: int | str, block: int | str, results: str | Path = RESULTS) -> str:
    """One job's share of a sweep."""
    return f"{results}/sweeps/{key}/removed={removed}/block={block}.parquet"


def relevance(key: str, removed: int | str, results: str | Path = RESULTS) -> str:
    """All metrics of a sweep."""
    return f"{results}/relevance/{key}/removed={removed}.parquet"


def plan(key: str, removed: int | str, results: str | Path = RESULTS) -> str:
    """The units that a selector removes at a size."""
    return f"{results}/plans/{key}/removed={removed}.json"


def search(key: str, results: str | Path = RESULTS) -> str:
    """Everything that a search tried, for all sizes of a selector."""
    return f"{results}/searches/{key}.parquet"


def patch(key: str, repair: str, results: str | Path = RESULTS) -> str:
    """Fitted tensors of a repair, for all sizes of a selector."""
    return f"{results}/patches/{key}/{repair}.safetensors"


def patch_table(key: str, repair: str, results: str | Path = RESULTS) -> str:
    """The table of the fits."""
    return f"{results}/patches/{key}/{repair}.parquet"


def adapter(key: str, removed: int | str, repair: str, healing: str, results: str | Path = RESULTS) -> str:
    """Folder of a healing's weights and its training curve."""
    return f"{results}/adapters/{key}/removed={removed}/{repair}/{healing}"


def benchmark(model: str, calibration: str, task: str, block: int | str, results: str | Path = RESULTS) -> str:
    """One task on a share of a calibration's variants; calibration `none` is the unpruned model."""
    return f"{results}/benchmarks/{model}/{calibration}/{task}/block={block}.parquet"


def benchmark_samples(model: str, calibration: str, task: str, block: int | str, results: str | Path = RESULTS) -> str:
    """The same job's single documents."""
    return f"{results}/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet"


def generation(model: str, calibration: str, task: str, block: int | str, results: str | Path = RESULTS) -> str:
    """Answers to one task written by a share of a calibration's variants."""
    return f"{results}/generation/{model}/{calibration}/{task}/block={block}.parquet"


def generation_samples(model: str, calibration: str, task: str, block: int | str, results: str | Path = RESULTS) -> str:
    """The same job's single documents."""
    return f"{results}/generation/{model}/{calibration}/{task}/block={block}.samples.parquet"


def efficiency(model: str, results: str | Path = RESULTS) -> str:
    """Size, speed and memory of a model's variants."""
    return f"{results}/efficiency/{model}.parquet"


def diagnosis(model: str, calibration: str, name: str, results: str | Path = RESULTS) -> str:
    """One diagnosis of a model on a calibration."""
    return f"{results}/diagnoses/{model}/{calibration}/{name}.parquet"


def table(name: str, results: str | Path = RESULTS) -> str:
    """One gathered table."""
    return f"{results}/tables/{name}.parquet"


def figure(name: str, results: str | Path = RESULTS) -> str:
    """One figure."""
    return f"{results}/figures/{name}.svg"


def export(variant: Variant | str, results: str | Path = RESULTS) -> str:
    """Folder of a variant as a checkpoint."""
    return f"{results}/exports/{variant}"


def training(folder: str) -> str:
    """The training curve in an adapter's folder, which a healing writes last."""
    return f"{folder}/training.parquet"


def adapter_weights(folder: str) -> list[str]:
    """Weights and settings in an adapter's folder, as PEFT calls them."""
    return [f"{folder}/adapter_model.safetensors", f"{folder}/adapter_config.json"]


def variant_files(variant: Variant, results: str | Path = RESULTS) -> VariantFiles:
    """The files behind a variant."""
    v = variant
    return VariantFiles(
        None if v.is_base else plan(v.key, v.removed, results),
        None if v.repair == "none" else patch(v.key, v.repair, results),
        None if v.healing == "none" else adapter(v.key, v.removed, v.repair, v.healing, results),
    )
