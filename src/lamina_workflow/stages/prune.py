"""Jobs of rules/prune.smk: the units that a selector removes, step by step or by a search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from lamina.engine import budgets
from lamina.options.calibrations import Calibration
from lamina.options.entry import Options
from lamina.options.metrics import METRICS, MODULES
from lamina.options.selectors import Selector
from lamina.selection.options import FurtherCalibration, Loop
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages import changes
from lamina_workflow.stages.job import (
    READ,
    WRITTEN,
    Job,
    OnModel,
    follow_entries,
    follow_family,
    time_limit,
)
from lamina_workflow.stages.sweep import key_columns
from lamina_workflow.study import requests
from lamina_workflow.study.sweeps import step_pass

TRIES = 100  # sets that a search compares, roughly; it determines the time limit


class SweepFiles(NamedTuple):
    """A calibration on which a step is scored, by the files of its samples and of its sweep."""

    calibration: str
    sweep: str
    score: str
    weight: float = 1.0


class PruneStep(Job):
    """One plan.

    `previous` is the plan with one unit fewer, and `sweep` is a sweep of the model that it leaves.
    Runs of layers are chosen from `activations` instead. `beside` are other calibrations on which
    removals are also scored, with their samples and sweeps.
    """

    PACKAGES = True

    selector: Options[Selector]
    score: Literal["acc", "acc_norm"]
    beside: dict[str, FurtherCalibration] = {}
    keys: dict[str, Any]
    manifest: Annotated[str, READ] = ""
    calibration: Annotated[str, READ] = ""
    previous: Annotated[str | None, READ] = None
    sweep: Annotated[str | None, READ] = None
    activations: Annotated[str | None, READ] = None
    beside_samples: Annotated[dict[str, str], READ] = {}
    beside_sweeps: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        selector = config.selectors[w.selector]
        beside = {}
        if step_pass(config, w.selector):
            weights = requests.further_calibrations(config, w.calibration, w.selector)
            for name, weight in sorted(weights.items()):
                beside[name] = FurtherCalibration(
                    weight=weight, score=config.calibrations[name].score
                )
        return cls(
            selector=selector,
            score=config.calibrations[w.calibration].score,
            beside=beside,
            keys=key_columns(w),
            follows=follow_entries(metric=METRICS[selector.metric] if selector.metric else None),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        modules = [f"lamina.selection.strategies.{self.selector.strategy}"]
        if self.selector.metric:
            modules.append(METRICS[self.selector.metric].module)
        if self.selector.periods == "whole":
            modules.append("lamina.models.cutting")
        return tuple(modules)

    @property
    def scored(self) -> dict[str, SweepFiles]:
        """The sweeps that the step reads, by calibration, the variant's own first.

        None for a step without a sweep.
        """
        if not self.sweep:
            return {}
        sweeps = {_calibration_of_sweep(file): file for file in self.beside_sweeps}
        scored = {self.keys["calibration"]: SweepFiles(self.calibration, self.sweep, self.score)}
        for name, other in self.beside.items():
            samples = self.beside_samples[name]
            scored[name] = SweepFiles(samples, sweeps[name], other.score, other.weight)
        return scored


def _calibration_of_sweep(file: str) -> str:
    """The calibration in the path of a sweep, `sweeps/{model}/{calibration}/…`."""
    parts = Path(file).parts
    return parts[parts.index("sweeps") + 2]


class SearchPlans(OnModel):
    """One search.

    `data` are calibrations that it reads in addition to the variant's own: those that its `repairs`
    add, and those that judge. `tokens` is the budget of one pass. `asked` is the entry of the judge
    calibration, if its questions are answered in writing.
    """

    selector: Options[Selector]
    sizes: list[int]
    score: Literal["acc", "acc_norm"]
    repairs: dict[str, Loop] = {}
    asked: Options[Calibration] | None = None
    tokens: int | str
    keys: dict[str, str]
    calibration: Annotated[str, READ] = ""
    data: Annotated[dict[str, str], READ] = {}
    manifests: Annotated[dict[str, str], READ] = {}
    plans: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        selector = config.selectors[w.selector]
        members = {name: METRICS[name] for name in selector.members if name in METRICS}
        return cls(
            selector=selector,
            sizes=requests.list_searches(config).get((w.model, w.calibration, w.selector), []),
            score=config.calibrations[w.calibration].score,
            repairs={name: changes.repair_in_place(config, w, name) for name in selector.repairs},
            asked=(
                config.calibrations[selector.judge or w.calibration]
                if selector.judge_by == "written"
                else None
            ),
            tokens=config.sweep.tokens,
            keys={"model": w.model, "calibration": w.calibration, "selector": w.selector},
            follows=follow_family(config, w.model)
            | follow_entries(metric=METRICS[selector.metric or ""], **members),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        repairs = [loop.module for loop in self.repairs.values()]
        writing = (MODULES["generate"],) if self.asked else ()
        borrowing = ("lamina.models.replacements",) if self.selector.donors else ()
        return (*writing, *borrowing, *self.selector.modules, self.selector.SEARCH, *repairs)

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; with repairs in place, also for their fits and waiting patches."""
        megabytes = super().memory(model, attempt)
        if not self.repairs:
            return megabytes
        repair_bytes = budgets.repair_peak_bytes(int(model["hidden_size"]))
        return megabytes + round(attempt * repair_bytes / 1e6)

    def minutes(self, model: Any, attempt: int) -> int:
        """Time limit of a job that compares about `TRIES` sets."""
        return time_limit(model, attempt, TRIES)


class PickPlan(Job):
    """The plan of one size, taken from those that a search found."""

    removed: int
    plans: Annotated[str, READ] = ""
