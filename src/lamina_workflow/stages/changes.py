"""The repair in the loop: it is in place while units are scored."""

from collections.abc import Iterable
from typing import Any

from lamina.options.repairs import IN_LOOP
from lamina.selection.options import Loop
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study.sweeps import SweepSelector


def loop_of(config: Configuration, w: Any) -> Loop | None:
    """The repair in the loop of a job's selector; None if nothing is repaired."""
    repair = SweepSelector.parse(w.selector).repair(config)
    if repair == "none":
        return None
    return repair_in_place(config, w, repair)


def repair_in_place(config: Configuration, w: Any, repair: str) -> Loop:
    """A repair that is in place while a job's selector compares candidates."""
    swept = SweepSelector.parse(w.selector)
    selector = config.selectors[swept.name]
    entry = config.repairs[repair]
    return Loop(
        repair=entry,
        weights=entry.ordered_weights(swept.planned_on(w.calibration), IN_LOOP),
        protect=list(selector.protect),
        seed=selector.seed,
    )


def modules_of(loop: Loop | None) -> list[str]:
    """The modules that a repair in place loads by name."""
    return ["lamina.selection.looped", loop.module] if loop else []


def repair_modules(config: Configuration, names: Iterable[str]) -> list[str]:
    """The modules of repairs, without `none`: measuring a model runs their `apply`."""
    methods = {config.repairs[name].method for name in names if name != "none"}
    return sorted(f"lamina.repairs.methods.{method}" for method in methods)
