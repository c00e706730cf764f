"""Rule fit_runs: fit all repairs of a selector that one pass over the unpruned model can serve."""

import json
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.runtime.fingerprint import code_digest, package_digest
from lamina.stages.described import Place
from lamina.stages.fit_patch import FitPatch
from lamina.stages.job import READ, OnModel, family
from lamina.study import paths
from lamina.study import requests as studies


class FitRuns(OnModel):
    """The fits of runs of removed layers, for the jobs of `fit_patch` that take them from here.

    `fits` is what each of these jobs is told. It is no reason to run again: a job that does not find its fit makes it
    itself. A repair that adds a calibration or a plan to what is read does run the pass again. No change of one
    repair makes the patch of another stale.
    """

    OUTPUTS = {"output": paths.fits(paths.KEY)}

    calibration: Annotated[str, READ]
    data: Annotated[dict[str, str], READ] = {}
    plans: Annotated[list[str], READ]
    own: str
    seed: int
    fits: list[str]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        jobs = [FitPatch.of(config, Place(w, repair=name)) for name in studies.fitted_together(config, w)]
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            data=dict(sorted(file for job in jobs for file in job.data.items())),
            plans=sorted({plan for job in jobs for plan in job.plans}),
            own=w.calibration,
            seed=config.seed,
            fits=[job.told() for job in jobs],
            follows=family(config, w.model),
            **cls.written(w),
        )

    @property
    def jobs(self) -> list[FitPatch]:
        """The jobs that take their fits from here."""
        return [FitPatch.model_validate(json.loads(told)["job"]) for told in self.fits]

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({module for job in self.jobs for module in job.modules}))

    def followed(self) -> str:
        """What makes the job stale: all that it is told beside `fits`, and the code that no repair has for itself."""
        job, rules = self._plain(), (self.rule(), FitPatch.rule())
        told = {name: value for name, value in job.items() if name not in ("fits", "data")}
        message = {"job": told, "code": code_digest(*rules), "packages": package_digest(*rules)}
        return json.dumps(message, sort_keys=True)

    def memory(self, attempt: int) -> int:
        """As for any job, and for the maps that it holds until it ends: two for each run of each repair."""
        runs = sum(sum(job.sizes) for job in self.jobs)
        return super().memory(attempt) + round(attempt * 2 * runs * self._described()["hidden_size"] ** 2 * 4 / 1e6)
