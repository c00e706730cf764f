"""Rule fit_patch: fit one repair for all plan sizes of a selector, with one model load and shared forward passes."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.repairs import Repair
from lamina.cost.work import WEIGHTS
from lamina.stages.changes import IN_LOOP, added, weighed
from lamina.stages.job import READ, OnModel, Told, family
from lamina.study import paths
from lamina.study import requests as studies


class FitPatch(OnModel):
    """One repair, by its name and its entry, for `plans` of several sizes.

    `weights` has the weight of a token of each calibration that it is fitted on, the variants' own first; it is empty
    if a weight is to be chosen. `data` are the files of the other calibrations.
    """

    OUTPUTS = {
        "output": paths.patch(paths.KEY, "{repair}"),
        "table": paths.patch_table(paths.KEY, "{repair}"),
    }

    calibration: Annotated[str, READ]
    data: Annotated[dict[str, str], READ] = {}
    plans: Annotated[list[str], READ]
    sizes: list[int]
    name: str
    repair: Told[Repair]
    weights: list[tuple[str, float]] = []
    own: str
    seed: int
    output: str
    table: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.repairs[w.repair]
        sizes = studies.sizes(config, w.model, w.calibration, w.selector, w.repair)
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            data=added(config, w, w.repair),
            plans=[paths.plan(paths.KEY.format(**w), size) for size in sizes],
            sizes=sizes,
            name=w.repair,
            repair=entry,
            weights=[] if entry.automatic(w.calibration) else weighed(entry, w.calibration, IN_LOOP),
            own=w.calibration,
            seed=config.seed,
            follows=family(config, w.model),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (*self.repair.modules, *([] if self.weights else ["lamina.repair.weighing"]))

    def memory(self, attempt: int) -> int:
        """As for any job, and for the maps that it holds until it ends: two for each run and each weight it tries."""
        maps = 2 * (1 if self.weights else WEIGHTS) * sum(self.sizes) * self._described()["hidden_size"] ** 2
        return super().memory(attempt) + round(attempt * maps * 4 / 1e6)
