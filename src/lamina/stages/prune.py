"""Jobs of rules/prune.smk: the units that a selector removes at one size, step by step or by a search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.entry import Options
from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.engine import budgets
from lamina.selection.options import Beside, Loop, Replacements, Scored
from lamina.stages import changes
from lamina.stages.job import READ, WRITTEN, Job, OnModel, entries, family, minutes
from lamina.stages.sweep import keys
from lamina.study import requests as studies
from lamina.study.sweeps import step_pass

TRIES = 100  # sets that a search compares, roughly, for its time limit


class PruneStep(Job):
    """One plan. `previous` is the plan with one unit less, and `sweep` is a sweep of the model that it leaves. Runs of
    layers are chosen from `activations` instead. `beside` are other calibrations, with their samples and sweeps.
    """

    PACKAGES = True

    selector: Options[Selector]
    score: Literal["acc", "acc_norm"]
    replacements: Replacements | None = None
    beside: dict[str, Beside] = {}
    keys: dict[str, Any]
    manifest: Annotated[str, READ] = ""
    calibration: Annotated[str, READ] = ""
    previous: Annotated[str | None, READ] = None
    sweep: Annotated[str | None, READ] = None
    activations: Annotated[str | None, READ] = None
    beside_samples: Annotated[dict[str, str], READ] = {}
    beside_sweeps: Annotated[list[str], READ] = []
    manifests: Annotated[dict[str, str], READ] = {}

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        selector, beside = config.selectors[w.selector], {}
        if step_pass(config, w.selector):
            for name, weight in sorted(studies.beside(config, w.calibration, w.selector).items()):
                beside[name] = Beside(weight=weight, score=config.calibrations[name].score)
        return cls(
            selector=selector,
            score=config.calibrations[w.calibration].score,
            replacements=changes.replacements(config, w),
            beside=beside,
            keys=keys(w),
            follows=entries(metric=METRICS[selector.metric] if selector.metric else None),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        metric = [METRICS[self.selector.metric].module] if self.selector.metric else []
        strategy = "replacements" if self.replacements else self.selector.strategy
        kinds = ["lamina.models.cutting"] if self.selector.periods == "whole" else []
        return (f"lamina.selection.strategies.{strategy}", *metric, *kinds)

    @property
    def scored(self) -> dict[str, Scored]:
        """The sweeps that the step reads, by calibration, the variant's own first; none for a step without a sweep."""
        if not self.sweep:
            return {}
        # The name of a calibration stands in the path of its sweep.
        sweeps = {
            Path(file).parts[Path(file).parts.index("sweeps") + 2]: file
            for file in self.beside_sweeps
        }
        scored = {self.keys["calibration"]: Scored(self.calibration, self.sweep, self.score)}
        for name, also in self.beside.items():
            scored[name] = Scored(self.beside_samples[name], sweeps[name], also.score, also.weight)
        return scored


class SearchPlans(OnModel):
    """One search. `data` are calibrations that it reads beside the variant's own: those that a repair in the `loop`, or
    one of several `repairs`, adds, and those that judge. `tokens` is the budget of one pass.
    """

    selector: Options[Selector]
    sizes: list[int]
    score: Literal["acc", "acc_norm"]
    loop: Loop | None = None
    repairs: dict[str, Loop] = {}
    replacements: Replacements | None = None
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
            sizes=studies.searches(config).get((w.model, w.calibration, w.selector), []),
            score=config.calibrations[w.calibration].score,
            loop=changes.loop(config, w),
            repairs={name: changes.repaired(config, w, name) for name in selector.repairs},
            replacements=changes.replacements(config, w),
            tokens=config.sweep.tokens,
            keys={"model": w.model, "calibration": w.calibration, "selector": w.selector},
            follows=family(config, w.model)
            | entries(metric=METRICS[selector.metric or ""], **members),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        mending = [loop.module for loop in self.repairs.values()]
        return (
            *self.selector.modules,
            self.selector.SEARCH,
            *mending,
            *changes.modules(self.loop, self.replacements),
        )

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; where repairs are in place, also for their fit and for the patches that wait."""
        if not self.repairs and self.loop is None:
            return super().memory(model, attempt)
        beside = budgets.repairing(int(model["hidden_size"]))
        return super().memory(model, attempt) + round(attempt * beside / 1e6)

    def minutes(self, model: Any, attempt: int) -> int:
        """Time limit of a job that compares about `TRIES` sets."""
        return minutes(model, attempt, TRIES)


class PickPlan(Job):
    """The plan of one size, from those that a search found."""

    removed: int
    plans: Annotated[str, READ] = ""
