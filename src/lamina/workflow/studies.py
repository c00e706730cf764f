"""What the studies of a configuration ask for, as lists that rules turn into files.

Pure functions of a loaded configuration (`lamina.config.load`). Every list is sorted and free of duplicates, so that
studies that overlap share their jobs.
"""

import zlib
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from lamina.config.load import REMOVAL_METRICS, Config, layers, own_tasks, removed_count

__all__ = [
    "Variant",
    "benchmark_blocks",
    "block_variants",
    "captures",
    "efficiency_variants",
    "maps",
    "metric_pass",
    "own_tasks",
    "passes",
    "plans",
    "sizes",
    "step_pass",
    "sweep_settings",
    "sweeps",
    "variants",
]

_PASSES = dict.fromkeys(REMOVAL_METRICS, "removal") | {
    "cosine": "stream",
    "angular": "stream",
    "taylor": "gradient",
    "magnitude": "weights",
}
# The pass whose metrics another pass measures along the way.
_CARRIED = {"removal": "stream", "gradient": "weights"}
_SWEEPING = ("iterative", "one_shot")


class Variant(NamedTuple):
    """A base model with a plan of `removed` units, a recovery and a healing; the key of most tables.

    The unpruned model has `none` for calibration, selector, recovery and healing, and 0 removed.
    """

    model: str
    calibration: str
    selector: str
    removed: int
    recovery: str
    healing: str

    @classmethod
    def base(cls, model: str) -> "Variant":
        """The unpruned model."""
        return cls(model, "none", "none", 0, "none", "none")

    @property
    def is_base(self) -> bool:
        """Whether this is the unpruned model."""
        return self.removed == 0

    @property
    def plan(self) -> str:
        """Path part of the plan: `model/calibration/selector/removed=n`."""
        return f"{self.model}/{self.calibration}/{self.selector}/removed={self.removed}"

    @property
    def patch(self) -> str:
        """Path part of the patch, one for all sizes of a selector: `model/calibration/selector/recovery`."""
        return f"{self.model}/{self.calibration}/{self.selector}/{self.recovery}"

    @property
    def adapter(self) -> str:
        """Path part of the adapter: `model/calibration/selector/removed=n/recovery/healing`."""
        return f"{self.plan}/{self.recovery}/{self.healing}"


def variants(config: Config) -> list[Variant]:
    """Variants of all studies, without the unpruned models."""
    return sorted({variant for study in _pruning(config) for variant in _study_variants(config, study)})


def plans(config: Config) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of the plans that variants use; not the steps on the way to them."""
    return sorted({(v.model, v.calibration, v.selector, v.removed) for v in variants(config)})


def sizes(config: Config, model: str, calibration: str, selector: str, recovery: str) -> list[int]:
    """Numbers of removed units for which a recovery's patch is used."""
    return sorted(
        {
            variant.removed
            for study in _pruning(config)
            for variant in _study_variants(config, study, model, calibration)
            if variant.selector == selector and variant.recovery == recovery
        }
    )


def block_variants(config: Config, model: str, calibration: str, task: str, block: int) -> list[Variant]:
    """Variants of a calibration that one benchmark job measures on a task or perplexity text.

    A variant's block follows from its own key, so that adding one changes one block only. Calibration `none` gives the
    unpruned model, in block 0.
    """
    if calibration == "none":
        return [Variant.base(model)] if block == 0 and task in _model_tasks(config, model) else []
    return sorted(
        {
            variant
            for study in _pruning(config)
            if task in _study_tasks(config, study, calibration)
            for variant in _study_variants(config, study, model, calibration)
            if _block(config, variant) == block
        }
    )


def benchmark_blocks(config: Config) -> list[tuple[str, str, str, int]]:
    """(model, calibration, task, block) of every benchmark job, with calibration `none` for the unpruned models."""
    blocks = {(model, "none", task, 0) for model in config["models"] for task in _model_tasks(config, model)}
    for study in _pruning(config):
        for calibration in study["calibrations"]:
            tasks = _study_tasks(config, study, calibration)
            for model in study["models"]:
                numbers = {_block(config, variant) for variant in _study_variants(config, study, model, calibration)}
                blocks.update((model, calibration, task, number) for task in tasks for number in numbers)
    return sorted(blocks)


def maps(config: Config) -> list[tuple[str, str, str, str]]:
    """(model, calibration, pass, units) of the sweeps of unpruned models that studies of maps need."""
    wanted: dict[tuple[str, str, str], set[str]] = {}
    for study in config["studies"].values():
        for model in study["models"] if "metrics" in study else []:
            for calibration in study["calibrations"]:
                wanted.setdefault((model, calibration, study["units"]), set()).update(study["metrics"])
    return sorted((m, c, name, units) for (m, c, units), metrics in wanted.items() for name in passes(metrics))


def sweeps(config: Config, carried: bool = False) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of every sweep that goes into the tables.

    Sweeps of the unpruned model have the selector `base/{pass}/{units}`; where one pass carries another's metrics, the
    other is left out, so that no row is there twice. `carried` puts those in as well: steps of selectors read them.
    """
    base = {(model, calibration, units, what) for model, calibration, what, units in maps(config)}
    steps = set()
    for model, calibration, selector, removed in plans(config):
        what, entry = step_pass(config, selector), config["selectors"][selector]
        if what is None:
            continue
        shared = entry["budget"] == "full"
        if shared:
            base.add((model, calibration, entry["units"], what))
        if entry["strategy"] == "iterative":
            steps |= {(model, calibration, selector, step) for step in range(int(shared), removed)}
    if not carried:
        base -= {(m, c, units, _CARRIED[what]) for m, c, units, what in base if what in _CARRIED}
    return sorted({(m, c, f"base/{what}/{units}", 0) for m, c, units, what in base} | steps)


def sweep_settings(config: Config, selector: str) -> tuple[str, str, str]:
    """Pass, kind of unit and budget of the sweeps under a selector, which may be `base/{pass}/{units}`."""
    if selector.startswith("base/"):
        _, what, units = selector.split("/")
        return what, units, "full"
    entry = config["selectors"][selector]
    return step_pass(config, selector) or "removal", entry["units"], entry["budget"]


def metric_pass(metric: str) -> str:
    """The cheapest pass that measures a metric: `removal`, `stream`, `gradient` or `weights`."""
    return _PASSES[metric]


def passes(metrics: Iterable[str]) -> list[str]:
    """Passes that measure several metrics: a removal pass carries the stream metrics along, a gradient the weights."""
    needed = {metric_pass(metric) for metric in metrics}
    return sorted(needed - {_CARRIED.get(name) for name in needed})


def step_pass(config: Config, selector: str) -> str | None:
    """The pass whose sweep a step of a selector reads; None where no sweep is read.

    `block` reads the captured activations instead, `deepest` and `random` read no measurement.
    """
    entry = config["selectors"][selector]
    return metric_pass(entry["metric"]) if entry["strategy"] in _SWEEPING else None


def captures(config: Config) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that a study uses."""
    return sorted(
        {(m, c) for study in config["studies"].values() for m in study["models"] for c in study["calibrations"]}
    )


def efficiency_variants(config: Config, model: str) -> list[Variant]:
    """Variants of a model that differ in structure: one per kind of unit, number of removed units and recovery.

    Which layers went does not change the speed, so the first calibration and selector of the studies stand for all. A
    healing is merged into the weights and does not count. Empty where the configuration measures no efficiency.
    """
    if config["benchmarks"]["efficiency"] is None:
        return []
    chosen: dict[tuple[str, int, str], Variant] = {}
    for study in _pruning(config):
        for variant in _study_variants(config, study, model):
            units = config["selectors"][variant.selector]["units"]
            chosen.setdefault((units, variant.removed, variant.recovery), variant._replace(healing="none"))
    return sorted(chosen.values())


def _pruning(config: Config) -> list[dict[str, Any]]:
    return [study for study in config["studies"].values() if "selectors" in study]


def _study_variants(
    config: Config, study: dict[str, Any], model: str | None = None, calibration: str | None = None
) -> Iterator[Variant]:
    """Variants of one study in the order of its lists, of one model and calibration if they are given."""
    for each in study["models"]:
        if model in (None, each):
            counts = [removed_count(entry, layers(config, each)) for entry in study["removed"]]
            calibrations = [name for name in study["calibrations"] if calibration in (None, name)]
            ways = product(calibrations, study["selectors"], counts, study["recoveries"], study["healings"])
            yield from (Variant(each, *way) for way in ways)


def _study_tasks(config: Config, study: dict[str, Any], calibration: str) -> list[str]:
    tasks, texts = study["tasks"], study["perplexity"]
    if tasks == "own":
        tasks = own_tasks(config, calibration)
    elif tasks == "all":
        tasks = list(config["benchmarks"]["tasks"])
    return [*tasks, *(config["benchmarks"]["perplexity"] if texts == "all" else texts)]


def _model_tasks(config: Config, model: str) -> set[str]:
    """Where the unpruned model is measured: on every task and text, if any study prunes it."""
    used = any(model in study["models"] for study in _pruning(config))
    return {*config["benchmarks"]["tasks"], *config["benchmarks"]["perplexity"]} if used else set()


def _block(config: Config, variant: Variant) -> int:
    blocks: int = config["benchmark"]["blocks"]
    return zlib.crc32(variant.adapter.encode()) % blocks
