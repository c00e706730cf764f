"""Jobs of rules/sweep.smk: measure the removal of every unit, and score it by each metric."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from lamina.engine import budgets
from lamina.options.calibrations import Calibration
from lamina.options.entry import Options
from lamina.options.metrics import METRICS, MODULES, carried_passes
from lamina.options.selectors import Units
from lamina.selection.options import Loop
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages import changes
from lamina_workflow.stages.job import (
    READ,
    Job,
    OnModel,
    Wildcards,
    follow_entries,
    follow_family,
    time_limit,
)
from lamina_workflow.study.sweeps import SweepSelector, sweep_blocks


class SweepUnits(OnModel):
    """One block of a sweep.

    `plan` lists the units that are already removed. `asked` is the entry of the calibration, if its
    questions are answered in writing. `data` are the calibrations that a repair in the `loop` adds.
    `tokens` is the token budget of one pass.
    """

    ASIDE = ("block",)

    pass_: str
    units: Units
    loop: Loop | None = None
    asked: Options[Calibration] | None = None
    block: int
    blocks: int
    tokens: int | str
    keys: dict[str, Any]
    calibration: Annotated[str, READ] = ""
    plan: Annotated[str | None, READ] = None
    data: Annotated[dict[str, str], READ] = {}

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        swept = SweepSelector.parse(w.selector)
        pass_, units = swept.settings(config)
        return cls(
            pass_=pass_,
            units=units,  # type: ignore[arg-type]
            loop=changes.loop_of(config, w),
            asked=config.calibrations[w.calibration] if pass_ == "generate" else None,
            block=int(w.block),
            blocks=sweep_blocks(config, w.model, w.selector),
            tokens=config.sweep.tokens,
            keys=key_columns(w),
            follows=follow_family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        if self.pass_ in MODULES:
            return (MODULES[self.pass_],)
        return tuple(changes.modules_of(self.loop))

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; written answers take longer with more units, as in benchmarks."""
        if self.asked is None:
            return super().minutes(model, attempt)
        return time_limit(model, attempt, -(-int(model["n_layers"]) // self.blocks))

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; with a repair in place, also for its fit and for waiting patches."""
        megabytes = super().memory(model, attempt)
        if self.loop is None:
            return megabytes
        repair_bytes = budgets.repair_peak_bytes(int(model["hidden_size"]))
        return megabytes + round(attempt * repair_bytes / 1e6)


class GatherSweep(Job):
    """The blocks of a sweep, in their order.

    Blocks are temporary, so a gathered sweep becomes stale when the job that made its blocks would.
    """

    blocks: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        first_block = SweepUnits.of(config, Wildcards({**dict(w.items()), "block": "0"}))
        made_by = repr((first_block.options(), first_block.code()))
        return cls(follows={"block": hashlib.sha256(made_by.encode()).hexdigest()})


class ScoreRelevance(Job):
    """The scores of one sweep; `seed` is used by the bootstrap and by metrics with random draws."""

    PACKAGES = True

    metrics: list[str]
    score: Literal["acc", "acc_norm"]
    seed: int
    keys: dict[str, Any]
    sweep: Annotated[str, READ] = ""
    calibration: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        pass_, _ = SweepSelector.parse(w.selector).settings(config)
        measured_passes = carried_passes(pass_)
        measured = {
            name: metric for name, metric in METRICS.items() if metric.pass_ in measured_passes
        }
        return cls(
            metrics=list(measured),
            score=config.calibrations[w.calibration].score,
            seed=config.seed,
            keys=key_columns(w),
            follows=follow_entries(**measured),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        modules = {METRICS[metric].module for metric in self.metrics}
        return tuple(sorted(modules))


def key_columns(w: Any) -> dict[str, Any]:
    """The key columns of a sweep, plan or relevance table."""
    name = SweepSelector.parse(w.selector).name
    return {
        "model": w.model,
        "calibration": w.calibration,
        "selector": name,
        "removed": int(w.removed),
    }
