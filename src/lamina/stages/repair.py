"""Job of rules/repair.smk: the patches of one repair, for all plan sizes of a selector."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.entry import Options
from lamina.config.repairs import Repair
from lamina.cost.work import WEIGHTS
from lamina.engine import budgets
from lamina.stages.changes import IN_LOOP, weighed
from lamina.stages.job import READ, WRITTEN, OnModel, family
from lamina.study import requests as studies


class FitPatch(OnModel):
    """One repair, by its name and its entry, for `plans` of several sizes.

    `weights` has the weight of a token of each calibration that it is fitted on, the variants' own first; it is empty
    if a weight is to be chosen. `data` are the files of the other calibrations.
    """

    sizes: list[int]
    name: str
    repair: Options[Repair]
    weights: list[tuple[str, float]] = []
    own: str
    seed: int
    calibration: Annotated[str, READ] = ""
    data: Annotated[dict[str, str], READ] = {}
    plans: Annotated[list[str], READ] = []
    table: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.repairs[w.repair]
        return cls(
            sizes=studies.sizes(config, w.model, w.calibration, w.selector, w.repair),
            name=w.repair,
            repair=entry,
            weights=[]
            if entry.automatic(w.calibration)
            else weighed(entry, w.calibration, IN_LOOP),
            own=w.calibration,
            seed=config.seed,
            follows=family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (*self.repair.modules, *([] if self.weights else ["lamina.repair.weighing"]))

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job, for fits that need more than one pass, and for the maps that it holds until it ends.

        There are two maps for each run and each weight that it tries, and a third of what it writes.
        """
        channels, runs = int(model["hidden_size"]), sum(self.sizes)
        tried = 1 if self.weights else WEIGHTS
        maps = (2 * tried + 1) * runs * channels**2 * 4
        fitting = max(0, budgets.fitting(channels, runs) - budgets.HOST)
        return super().memory(model, attempt) + round(attempt * (fitting + maps) / 1e6)
