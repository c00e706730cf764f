"""Rule sweep_units: measure the removal of one block's units, on the base model or on what a plan leaves of it."""

from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS, MODULES
from lamina.selection.options import Donors, Loop
from lamina.stages.changes import added, donors, loop
from lamina.stages.job import READ, OnModel, entries, family
from lamina.study import paths
from lamina.study import requests as studies

# The selector's options that a budget reads.
_BUDGET = ("budget", "metric", "protect", "confidence", "tolerance", "seed")


class SweepUnits(OnModel):
    """One block of a sweep.

    `plan` says which units are gone already; `budget` lets units leave early; `data` are the calibrations that a
    repair in the `loop` adds. `tokens` is the budget of one pass.
    """

    OUTPUTS = {"output": paths.sweep_block(paths.KEY, "{removed}", "{block}")}
    PLACED = ("block",)

    calibration: Annotated[str, READ]
    plan: Annotated[str | None, READ] = None
    data: Annotated[dict[str, str], READ] = {}
    pass_: str
    units: Literal["layer", "attention", "mlp"]
    budget: dict[str, Any] | None = None
    loop: Loop | None = None
    donors: Donors | None = None
    block: int
    blocks: int
    tokens: int | str
    keys: dict[str, Any]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        pass_, units, budget = studies.sweep_settings(config, w.selector)
        own, planned = studies.planned_for(w.calibration, w.selector)
        removed, score, metric = int(w.removed), config.calibrations[w.calibration].score, None
        early = None
        if budget != "full":
            selector = config.selectors[planned]
            early = {name: getattr(selector, name) for name in _BUDGET} | {"score": score, "step": removed + 1}
            metric = METRICS[selector.metric or ""]
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            plan=paths.plan(f"{w.model}/{own}/{planned}", removed) if removed else None,
            data=added(config, w, studies.looped(config, w.selector)),
            pass_=pass_,
            units=units,  # type: ignore[arg-type]
            budget=early,
            loop=loop(config, w),
            donors=donors(config, w),
            block=int(w.block),
            blocks=studies.sweep_blocks(config, w.model, w.selector),
            tokens=config.sweep.tokens,
            keys=keys(w),
            follows=family(config, w.model) | entries(metric=metric),
            **cls.written(w),
        )

    @property
    def inputs(self) -> dict[str, Any]:
        return super().inputs | ({"donors": self.donors.manifests} if self.donors else {})

    @property
    def modules(self) -> tuple[str, ...]:
        if self.pass_ in MODULES:
            # A pass of fits runs `ghost`.
            fits = ["lamina.repair.methods.ghost"] if self.pass_ == "fit" else []
            return (MODULES[self.pass_], *fits)
        names = [f"lamina.selection.{self.budget['budget']}"] if self.budget else []
        names += ["lamina.selection.strategies.replacements", "lamina.models.donors"] if self.donors else []
        return (*names, *(["lamina.selection.looped", self.loop.module] if self.loop else []))


def keys(w: Any) -> dict[str, Any]:
    """The key columns of a sweep, plan or relevance table."""
    selector = studies.planned_for(w.calibration, w.selector)[1].split("/")[0]
    return {"model": w.model, "calibration": w.calibration, "selector": selector, "removed": int(w.removed)}
