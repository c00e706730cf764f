"""The path grammar under `results/`, as functions of names."""

import re
from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from pathlib import Path
from typing import NamedTuple

from lamina.errors import LaminaError
from lamina.study.variant import Variant

REPOSITORY = Path(__file__).resolve().parents[3]


def own(file: str) -> str:
    """A file of lamina itself: a relative path where a run starts in lamina's folder, absolute where a workflow of
    another folder uses lamina as a module."""
    return file if Path(file).exists() else str(REPOSITORY / file)


RESULTS = "results"
VIEWS = own("sql/views.sql")


class VariantFiles(NamedTuple):
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


def _path(form: str) -> Callable[..., str]:
    """A function that fills a form from its arguments, in their order; the last one is the folder of results."""
    names = re.findall(r"{(\w+)}", form)
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    parameters.append(Parameter("results", Parameter.POSITIONAL_OR_KEYWORD, default=RESULTS))
    signature = Signature(parameters)

    def path(*parts: object, **named: object) -> str:
        given = signature.bind(*parts, **named)
        given.apply_defaults()
        return f"{{results}}/{form}".format(**given.arguments)

    return path


# A `key` is that of a plan: model/calibration/selector.
manifest = _path("models/{model}/manifest.json")
calibration = _path("calibrations/{model}/{calibration}.parquet")  # tokenised samples
overlap = _path(
    "overlap/{model}/{calibration}/{task}.json"
)  # the check that they hold no document of a task
activations = _path(
    "activations/{model}/{calibration}.parquet"
)  # similarity of all pairs of boundaries
diagnosis = _path("diagnoses/{model}/{calibration}/{diagnosis}.parquet")
sweep = _path("sweeps/{key}/removed={removed}.parquet")  # every remaining unit's removal
sweep_block = _path("sweeps/{key}/removed={removed}/block={block}.parquet")  # one job's share of it
relevance = _path("relevance/{key}/removed={removed}.parquet")
plan = _path("plans/{key}/removed={removed}.json")
search = _path("searches/{key}.parquet")  # everything that was tried, for all sizes of a selector
patch = _path("patches/{key}/{repair}.safetensors")  # fitted tensors, for all sizes of a selector
patch_table = _path("patches/{key}/{repair}.parquet")
adapter = _path("adapters/{key}/removed={removed}/{repair}/{healing}")  # a folder
# A share of a calibration's variants on one task (calibration `none`: the unpruned model), and its single documents.
benchmark = _path("benchmarks/{model}/{calibration}/{task}/block={block}.parquet")
benchmark_samples = _path("benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet")
generation = _path(
    "generation/{model}/{calibration}/{task}/block={block}.parquet"
)  # of written answers
generation_samples = _path("generation/{model}/{calibration}/{task}/block={block}.samples.parquet")
efficiency = _path("efficiency/{model}.parquet")
export = _path("exports/{variant}")  # a folder


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
