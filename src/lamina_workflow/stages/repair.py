"""The job of rules/repair.smk: fit one repair for all plan sizes of a selector."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from lamina.engine import budgets
from lamina.options.entry import Options
from lamina.options.repairs import IN_LOOP, Repair
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.work import WEIGHTS
from lamina_workflow.stages.job import READ, WRITTEN, OnModel, follow_family
from lamina_workflow.study import requests


class FitPatch(OnModel):
    """One repair, by its name and its entry, for `plans` of several sizes.

    `weights` maps each calibration that it is fitted on to the weight of a token, the variants'
    `own` first; it is empty if a weight is to be chosen. `data` are the files of the other
    calibrations.
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
        weights: list[tuple[str, float]] = []
        if not entry.automatic(w.calibration):
            weights = entry.ordered_weights(w.calibration, IN_LOOP)
        return cls(
            sizes=requests.sizes_of_patches(config, w.model, w.calibration, w.selector, w.repair),
            name=w.repair,
            repair=entry,
            weights=weights,
            own=w.calibration,
            seed=config.seed,
            follows=follow_family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        if self.weights:
            return tuple(self.repair.modules)
        return (*self.repair.modules, "lamina.repairs.weighing")

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job, and for its fits and the maps that it holds until it ends.

        For each run of removed layers, there are two maps per weight that it tries, and a third of
        what it writes. Each removed layer may be a separate run.
        """
        hidden_size = int(model["hidden_size"])
        n_runs = sum(max(1, size) for size in self.sizes)
        n_weights = 1 if self.weights else WEIGHTS
        map_bytes = (2 * n_weights + 1) * n_runs * hidden_size**2 * 4
        fitting_bytes = max(0, budgets.fit_bytes(hidden_size, n_runs) - budgets.HOST_BYTES)
        return super().memory(model, attempt) + round(attempt * (fitting_bytes + map_bytes) / 1e6)
