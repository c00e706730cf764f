"""Which sweeps the studies of a configuration need, and what each of them measures.

A sweep removes every remaining unit of a model in turn. Its place is (model, calibration, selector, removed), and
`SweepSelector` says what can stand in the place of the selector.
"""

from dataclasses import dataclass
from itertools import product

from lamina.config.configuration import Configuration
from lamina.config.metrics import CARRIED, METRICS, MODULES, passes
from lamina.config.selectors import Selector
from lamina.config.studies import Maps
from lamina.study.paths import any_of
from lamina.study.requests import beside, plans

# How much more may be computed so that jobs of a sweep run side by side. Each job more costs 2 / (L + 1) of a sweep: it
# carries the model before the removals through L layers, and a sweep in one job runs L (L + 1) / 2 layers.
SHARING = 0.1


@dataclass(frozen=True)
class SweepSelector:
    """What stands in a sweep's path where a plan has its selector.

    `base/{pass}/{units}` is the unpruned model, whose sweep all selectors and maps share. `{selector}` goes on from the
    plans of a selector, and `for/{calibration}/{selector}` from those that it made for another calibration, `own`.
    """

    name: str
    own: str = ""
    pass_: str = ""
    units: str = ""

    @classmethod
    def parse(cls, text: str) -> "SweepSelector":
        """The selector that `str` wrote."""
        match text.split("/"):
            case ["base", pass_, units]:
                return cls("base", pass_=pass_, units=units)
            case ["for", own, name]:
                return cls(name, own)
        return cls(text)

    def __str__(self) -> str:
        if self.name == "base":
            return f"base/{self.pass_}/{self.units}"
        return f"for/{self.own}/{self.name}" if self.own else self.name

    def entry(self, config: Configuration) -> Selector | None:
        """The selector in the configuration; None for sweeps of the unpruned model, which belong to none."""
        return None if self.name == "base" else config.selectors[self.name]

    def planned_on(self, calibration: str) -> str:
        """The calibration of the plans that a sweep of `calibration` goes on from."""
        return self.own or calibration

    def settings(self, config: Configuration) -> tuple[str, str]:
        """Pass and kind of unit."""
        entry = self.entry(config)
        if entry is None:
            return self.pass_, self.units
        return step_pass(config, self.name) or "removal", entry.units

    def repair(self, config: Configuration) -> str:
        """The repair that is in place; `none` if none is."""
        entry = self.entry(config)
        return entry.repair or "none" if entry else "none"

    def others(self, config: Configuration) -> dict[str, list[str]]:
        """What may replace the model's own layers, by name: the models that it is made of."""
        return {} if self.name == "base" else config.replacing(self.name)


def any_selector(config: Configuration) -> str:
    """An expression for all that can stand in the place of a selector."""
    base = r"base/(?:removal|stream|fit|gradient|weights)/(?:layer|attention|mlp|both)"
    return any_of(
        config.selectors,
        base,
        f"for/(?:{any_of(config.calibrations)})/(?:{any_of(config.selectors)})",
    )


def sweeps(config: Configuration, carried: bool = False) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of every sweep that goes into the tables.

    If one pass carries another's metrics, the other is left out, so that no row is there twice. With `carried` it is
    included, because steps of selectors read it, and so are the sweeps of other calibrations that steps are scored on.
    """
    base = {(model, calibration, units, pass_) for model, calibration, pass_, units in maps(config)}
    steps = set()
    for model, calibration, selector, removed in plans(config):
        pass_, entry = step_pass(config, selector), config.selectors[selector]
        if pass_ is None:
            continue
        shared = starts_shared(entry)
        gone = range(int(shared), removed if entry.STEPS else 1)
        for read in [calibration, *(beside(config, calibration, selector) if carried else ())]:
            follows = str(SweepSelector(selector, "" if read == calibration else calibration))
            base |= {(model, read, entry.units, pass_)} if shared else set()
            steps |= {(model, read, follows, step) for step in gone}
    if not carried:
        base -= {(m, c, units, CARRIED[pass_]) for m, c, units, pass_ in base if pass_ in CARRIED}
    starts = {
        (m, c, str(SweepSelector("base", pass_=pass_, units=units)), 0)
        for m, c, units, pass_ in base
    }
    return sorted(starts | steps)


def maps(config: Configuration) -> list[tuple[str, str, str, str]]:
    """(model, calibration, pass, units) of the sweeps of unpruned models that studies of maps need."""
    wanted: dict[tuple[str, str, str], set[str]] = {}
    for study in config.studies.values():
        if isinstance(study, Maps):
            for model, calibration in product(study.models, study.calibrations):
                wanted.setdefault((model, calibration, study.units), set()).update(study.metrics)
    return sorted(
        (m, c, name, units) for (m, c, units), metrics in wanted.items() for name in passes(metrics)
    )


def starts_shared(entry: Selector) -> bool:
    """Whether a selector can use the shared sweep of the base model: all units, nothing repaired."""
    return entry.repair is None and not entry.donors


def step_pass(config: Configuration, selector: str) -> str | None:
    """The pass whose sweep a step of a selector reads; None where no sweep is read.

    `block` reads the captured activations instead, `deepest` and `random` read no measurement.
    """
    entry = config.selectors[selector]
    return METRICS[entry.metric].pass_ if entry.metric and entry.SWEEPS else None


def sweep_of_step(
    config: Configuration, selector: str, gone: int, own: str, calibration: str
) -> SweepSelector:
    """The selector of the sweep of a calibration that a step for the plans of calibration `own` reads."""
    entry = config.selectors[selector]
    if gone == 0 and starts_shared(entry):
        return SweepSelector("base", pass_=step_pass(config, selector) or "", units=entry.units)
    return SweepSelector(selector, "" if calibration == own else own)


def sweep_blocks(config: Configuration, model: str, selector: str) -> int:
    """Jobs of a sweep. Passes over weights are not worth sharing.

    `auto` depends on the model's depth alone, so that neither the machine nor other studies make a sweep stale.
    """
    pass_, _ = SweepSelector.parse(selector).settings(config)
    if pass_ in MODULES:
        return 1
    asked = config.sweep.blocks
    return (
        asked
        if asked != "auto"
        else 1 + int(SHARING * ((config.models[model].layers or 0) + 1) / 2)
    )
