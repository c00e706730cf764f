"""Rule search_plans: search the sets of units that one selector removes, at every size that a study asks for."""

from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.selection.options import Donors, Loop
from lamina.stages.changes import added, donors, loop
from lamina.stages.job import READ, OnModel, Told, entries, family, minutes
from lamina.study import paths
from lamina.study import requests as studies

TRIES = 100  # sets that a search compares, roughly, for its time limit


class SearchPlans(OnModel):
    """One search. `data` are the calibrations that a repair in the `loop` adds; `tokens` is the budget of one pass."""

    OUTPUTS = {"plans": paths.found_plans(paths.KEY), "output": paths.search(paths.KEY)}

    calibration: Annotated[str, READ]
    data: Annotated[dict[str, str], READ] = {}
    selector: Told[Selector]
    sizes: list[int]
    score: Literal["acc", "acc_norm"]
    loop: Loop | None = None
    donors: Donors | None = None
    tokens: int | str
    keys: dict[str, str]
    plans: str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        selector = config.selectors[w.selector]
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            data=added(config, w, studies.looped(config, w.selector)),
            selector=selector,
            sizes=studies.searches(config).get((w.model, w.calibration, w.selector), []),
            score=config.calibrations[w.calibration].score,
            loop=loop(config, w),
            donors=donors(config, w),
            tokens=config.sweep.tokens,
            keys={"model": w.model, "calibration": w.calibration, "selector": w.selector},
            follows=family(config, w.model) | entries(metric=METRICS[selector.metric or ""]),
            **cls.written(w),
        )

    @property
    def inputs(self) -> dict[str, Any]:
        return super().inputs | ({"donors": self.donors.manifests} if self.donors else {})

    @property
    def modules(self) -> tuple[str, ...]:
        names = [
            f"lamina.selection.strategies.{self.selector.strategy}",
            METRICS[self.selector.metric or ""].module,
        ]
        names += ["lamina.selection.looped", "lamina.selection.growing", self.loop.module] if self.loop else []
        return (*names, *(["lamina.selection.strategies.replacements", "lamina.models.donors"] if self.donors else []))

    def minutes(self, attempt: int) -> int:
        """Time limit of a job that compares about `TRIES` sets."""
        return minutes(self._described(), attempt, TRIES)
