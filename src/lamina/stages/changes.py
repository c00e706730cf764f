"""Changes of candidates beside removed units: a repair is in place, or other models' layers replace the model's own."""

from collections.abc import Iterable
from typing import Any

from lamina.config.configuration import Configuration
from lamina.config.repairs import Repair
from lamina.selection.options import Loop, Replacements
from lamina.study.sweeps import SweepSelector

# The weight in the place of `auto` while units are scored: there is no plan yet for which it could be chosen.
IN_LOOP = 0.1


def loop(config: Configuration, w: Any) -> Loop | None:
    """The repair in the loop of a job's selector; None if nothing is repaired."""
    repair = SweepSelector.parse(w.selector).repair(config)
    return None if repair == "none" else repaired(config, w, repair)


def repaired(config: Configuration, w: Any, repair: str) -> Loop:
    """A repair that is in place while a job's selector compares candidates."""
    swept = SweepSelector.parse(w.selector)
    selector, entry, own = (
        config.selectors[swept.name],
        config.repairs[repair],
        swept.planned_on(w.calibration),
    )
    # A strategy that draws nothing has no seed of its own.
    seed = selector.seed if "seed" in type(selector).model_fields else config.seed
    return Loop(
        repair=entry,
        weights=weighed(entry, own, IN_LOOP),
        protect=list(selector.protect),
        seed=seed,
    )


def weighed(entry: Repair, own: str, auto: float) -> list[tuple[str, float]]:
    """The weights of what a repair is fitted on, the variant's own calibration first, the others by name."""
    weights = entry.weights(own, auto)
    return [(own, weights.pop(own)), *sorted(weights.items())]


def replacements(config: Configuration, w: Any) -> Replacements | None:
    """Whose layers may replace the model's own under a job's selector; None if nobody's."""
    swept = SweepSelector.parse(w.selector)
    selector, others = swept.entry(config), swept.others(config)
    if selector is None or not others:
        return None
    merged = {
        name: config.donors[name].model_dump()
        for name, models in others.items()
        if models != [name]
    }
    return Replacements(names=list(others), protect=list(selector.protect), merged=merged)


def modules(loop: Loop | None, replacements: Replacements | None) -> list[str]:
    """The modules that these changes load by name."""
    names = (
        ["lamina.selection.strategies.replacements", "lamina.models.replacements"]
        if replacements
        else []
    )
    return names + (["lamina.selection.looped", loop.module] if loop else [])


def repair_modules(config: Configuration, names: Iterable[str]) -> list[str]:
    """The modules of the repairs in models: the measured models run their `apply`."""
    return sorted(
        {f"lamina.repair.methods.{config.repairs[name].method}" for name in names if name != "none"}
    )
