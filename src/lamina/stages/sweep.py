"""Jobs of rules/sweep.smk: the removal of every unit, measured, and its relevance by every metric."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS, MODULES, carried
from lamina.config.selectors import Units
from lamina.engine import budgets
from lamina.selection.options import Loop, Replacements
from lamina.stages import changes
from lamina.stages.job import READ, Job, OnModel, Place, entries, family
from lamina.study.sweeps import SweepSelector, sweep_blocks

# The selector's options that a budget reads.
_BUDGET = ("budget", "metric", "protect", "confidence", "tolerance", "seed")


class SweepUnits(OnModel):
    """One block of a sweep.

    `plan` says which units are gone already; `budget` lets units leave early; `data` are the calibrations that a repair
    in the `loop` adds; `manifests` are those of `replacements`. `tokens` is the budget of one pass.
    """

    ASIDE = ("block",)

    pass_: str
    units: Units
    budget: dict[str, Any] | None = None
    loop: Loop | None = None
    replacements: Replacements | None = None
    block: int
    blocks: int
    tokens: int | str
    keys: dict[str, Any]
    calibration: Annotated[str, READ] = ""
    plan: Annotated[str | None, READ] = None
    data: Annotated[dict[str, str], READ] = {}
    manifests: Annotated[dict[str, str], READ] = {}

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        swept = SweepSelector.parse(w.selector)
        pass_, units, budget = swept.settings(config)
        early, metric = None, None
        if budget != "full":
            selector = config.selectors[swept.name]
            score = config.calibrations[w.calibration].score
            early = {name: getattr(selector, name) for name in _BUDGET} | {
                "score": score,
                "step": int(w.removed) + 1,
            }
            metric = METRICS[selector.metric or ""]
        return cls(
            pass_=pass_,
            units=units,  # type: ignore[arg-type]
            budget=early,
            loop=changes.loop(config, w),
            replacements=changes.replacements(config, w),
            block=int(w.block),
            blocks=sweep_blocks(config, w.model, w.selector),
            tokens=config.sweep.tokens,
            keys=keys(w),
            follows=family(config, w.model) | entries(metric=metric),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        if self.pass_ in MODULES:
            # A pass of fits runs `ghost`.
            return (
                MODULES[self.pass_],
                *(["lamina.repair.methods.ghost"] if self.pass_ == "fit" else []),
            )
        budget = [f"lamina.selection.{self.budget['budget']}"] if self.budget else []
        return (*budget, *changes.modules(self.loop, self.replacements))

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; where a repair is in place, also for its fit and for the patches that wait."""
        if self.loop is None:
            return super().memory(model, attempt)
        beside = budgets.repairing(int(model["hidden_size"]))
        return super().memory(model, attempt) + round(attempt * beside / 1e6)


class GatherSweep(Job):
    """The blocks of a sweep, in their order. They are temporary, so the whole sweep follows what made them."""

    blocks: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        block = SweepUnits.of(config, Place({**dict(w.items()), "block": "0"}))
        made_by = hashlib.sha256(repr((block.options(), block.code())).encode()).hexdigest()
        return cls(follows={"block": made_by})


class ScoreRelevance(Job):
    """One sweep. `exact` says that units that left it early saw the hardest samples; the bootstrap and metrics draw
    with `seed`.
    """

    PACKAGES = True

    metrics: list[str]
    score: Literal["acc", "acc_norm"]
    exact: bool = False
    seed: int
    keys: dict[str, Any]
    sweep: Annotated[str, READ] = ""
    calibration: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        pass_, _, budget = SweepSelector.parse(w.selector).settings(config)
        measured = {
            name: metric for name, metric in METRICS.items() if metric.pass_ in carried(pass_)
        }
        return cls(
            metrics=list(measured),
            score=config.calibrations[w.calibration].score,
            exact=budget == "exact",
            seed=config.seed,
            keys=keys(w),
            follows=entries(**measured),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({METRICS[metric].module for metric in self.metrics}))


def keys(w: Any) -> dict[str, Any]:
    """The key columns of a sweep, plan or relevance table."""
    name = SweepSelector.parse(w.selector).name
    return {
        "model": w.model,
        "calibration": w.calibration,
        "selector": name,
        "removed": int(w.removed),
    }
