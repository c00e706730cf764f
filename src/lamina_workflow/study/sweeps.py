"""Which sweeps the studies of a configuration need, and what each of them measures.

A sweep removes every remaining unit of a model in turn. It is named by (model, calibration,
selector, removed); `SweepSelector` says what may take the place of the selector.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from lamina.options.metrics import CARRIED, METRICS, passes_of
from lamina.options.selectors import Selector
from lamina.paths import any_of
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Maps
from lamina_workflow.study.requests import further_calibrations, list_plans

# How much more may be computed so that a sweep's jobs can run at the same time. Each further job
# costs 2 / (L + 1) of a sweep: it runs the model before the removals through L layers, and a sweep
# in one job runs L (L + 1) / 2 layers.
SHARING = 0.1


@dataclass(frozen=True)
class SweepSelector:
    """The part of a sweep's path that in a plan's path is the selector.

    `base/{pass}/{units}` is the base model, whose sweep all selectors and maps share. `{selector}`
    continues from the plans of a selector, and `for/{plan_calibration}/{selector}` from those that
    it made for another calibration.
    """

    name: str
    """`base`, or the name of a selector."""
    plan_calibration: str = ""
    """The calibration of the plans, if it differs from the swept one."""
    pass_: str = ""
    """Pass of a sweep of the base model; empty for other sweeps."""
    units: str = ""
    """Kind of unit of a sweep of the base model; empty for other sweeps."""

    @classmethod
    def parse(cls, text: str) -> "SweepSelector":
        """Read the text that `str` writes."""
        match text.split("/"):
            case ["base", pass_, units]:
                return cls("base", pass_=pass_, units=units)
            case ["for", plan_calibration, name]:
                return cls(name, plan_calibration)
        return cls(text)

    def __str__(self) -> str:
        if self.name == "base":
            return f"base/{self.pass_}/{self.units}"
        if self.plan_calibration:
            return f"for/{self.plan_calibration}/{self.name}"
        return self.name

    def entry(self, config: Configuration) -> Selector | None:
        """The selector in the configuration; None for sweeps of the base model."""
        return None if self.name == "base" else config.selectors[self.name]

    def planned_on(self, calibration: str) -> str:
        """The calibration of the plans from which a sweep of `calibration` continues."""
        return self.plan_calibration or calibration

    def settings(self, config: Configuration) -> tuple[str, str]:
        """The pass and the kind of unit."""
        entry = self.entry(config)
        if entry is None:
            return self.pass_, self.units
        return step_pass(config, self.name) or "removal", entry.units

    def repair(self, config: Configuration) -> str:
        """The repair that is in place during the sweep, or `none`."""
        entry = self.entry(config)
        if entry is None or entry.repair is None:
            return "none"
        return entry.repair


def any_selector(config: Configuration) -> str:
    """A regular expression for everything that can be in the place of a selector."""
    base = r"base/(?:removal|stream|gradient|weights|generate)/(?:layer|attention|mlp|both)"
    other_calibration = f"for/(?:{any_of(config.calibrations)})/(?:{any_of(config.selectors)})"
    return any_of(config.selectors, base, other_calibration)


class _BaseSweep(NamedTuple):
    """A sweep of a base model, which several selectors and maps may share."""

    model: str
    calibration: str
    units: str
    pass_: str


def list_sweeps(config: Configuration, carried: bool = False) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of every sweep that goes into the tables.

    If one pass also measures another's metrics, the other pass is left out, so that no row occurs
    twice.

    carried: Include such passes, because steps of selectors read them, and also the sweeps of the
        further calibrations on which steps are scored.
    """
    base_sweeps = {
        _BaseSweep(model, calibration, units, pass_)
        for model, calibration, pass_, units in list_maps(config)
    }
    step_sweeps: set[tuple[str, str, str, int]] = set()
    for model, plan_calibration, selector, n_removed in list_plans(config):
        pass_ = step_pass(config, selector)
        if pass_ is None:
            continue
        entry = config.selectors[selector]
        swept_calibrations = [plan_calibration]
        if carried:
            swept_calibrations += further_calibrations(config, plan_calibration, selector)
        for calibration in swept_calibrations:
            if starts_shared(entry):
                base_sweeps.add(_BaseSweep(model, calibration, entry.units, pass_))
            name = str(_sweep_selector(selector, plan_calibration, calibration))
            for step in _own_steps(entry, n_removed):
                step_sweeps.add((model, calibration, name, step))

    if not carried:
        base_sweeps -= _carried_along(base_sweeps)
    for sweep in base_sweeps:
        name = str(SweepSelector("base", pass_=sweep.pass_, units=sweep.units))
        step_sweeps.add((sweep.model, sweep.calibration, name, 0))
    return sorted(step_sweeps)


def _own_steps(entry: Selector, n_removed: int) -> range:
    """The numbers of removed units at which a selector sweeps for itself on the way to a plan."""
    first_step = 1 if starts_shared(entry) else 0
    return range(first_step, n_removed if entry.STEPS else 1)


def _carried_along(base_sweeps: set[_BaseSweep]) -> set[_BaseSweep]:
    """The sweeps whose metrics other sweeps in `base_sweeps` also measure."""
    return {
        sweep._replace(pass_=CARRIED[sweep.pass_])
        for sweep in base_sweeps
        if sweep.pass_ in CARRIED
    }


def list_maps(config: Configuration) -> list[tuple[str, str, str, str]]:
    """(model, calibration, pass, units) of the sweeps of base models that studies of maps need."""
    metrics_by_sweep: dict[tuple[str, str, str], set[str]] = {}
    for study in config.studies.values():
        if not isinstance(study, Maps):
            continue
        for model, calibration in product(study.models, study.calibrations):
            metrics = metrics_by_sweep.setdefault((model, calibration, study.units), set())
            metrics.update(study.metrics)

    base_sweeps: list[tuple[str, str, str, str]] = []
    for (model, calibration, units), metrics in metrics_by_sweep.items():
        for pass_ in passes_of(metrics):
            base_sweeps.append((model, calibration, pass_, units))
    return sorted(base_sweeps)


def starts_shared(entry: Selector) -> bool:
    """Whether a selector's first step can use the shared sweep of the base model.

    It can if no repair is in place.
    """
    return entry.repair is None


def step_pass(config: Configuration, selector: str) -> str | None:
    """The pass whose sweep a step of a selector reads; None if it reads no sweep.

    `block` reads the captured activations instead; `deepest` and `random` read no measurement.
    """
    entry = config.selectors[selector]
    if not entry.metric or not entry.SWEEPS:
        return None
    return METRICS[entry.metric].pass_


def sweep_of_step(
    config: Configuration, selector: str, n_removed: int, plan_calibration: str, calibration: str
) -> SweepSelector:
    """The selector of the sweep that a step of a selector reads.

    plan_calibration: The calibration of the plans.
    calibration: The calibration that is swept.
    """
    entry = config.selectors[selector]
    if n_removed == 0 and starts_shared(entry):
        return SweepSelector("base", pass_=step_pass(config, selector) or "", units=entry.units)
    return _sweep_selector(selector, plan_calibration, calibration)


def _sweep_selector(selector: str, plan_calibration: str, calibration: str) -> SweepSelector:
    """The selector of a sweep of `calibration` that continues from plans for `plan_calibration`."""
    if calibration == plan_calibration:
        return SweepSelector(selector)
    return SweepSelector(selector, plan_calibration)


def sweep_blocks(config: Configuration, model: str, selector: str) -> int:
    """The number of jobs of a sweep. Only passes with removals are split; others run in one job.

    `auto` depends only on the model's depth, so that neither the machine nor other studies make a
    sweep stale.
    """
    pass_, _ = SweepSelector.parse(selector).settings(config)
    if pass_ not in ("removal", "generate"):
        return 1
    if config.sweep.blocks != "auto":
        return config.sweep.blocks
    n_layers = config.models[model].layers or 0
    return 1 + int(SHARING * (n_layers + 1) / 2)
