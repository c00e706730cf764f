"""Rule score_relevance: turn a sweep into relevance scores with intervals, for every metric that it measured."""

from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS
from lamina.relevance.passes import carried
from lamina.stages.job import READ, Job, entries
from lamina.stages.sweep_units import keys
from lamina.study import paths
from lamina.study import requests as studies


class ScoreRelevance(Job):
    """One sweep. `exact` says that units that left it early saw the hardest samples; the bootstrap and metrics draw
    with `seed`.
    """

    OUTPUTS = {"output": paths.relevance(paths.KEY, "{removed}")}
    PACKAGES = True

    sweep: Annotated[str, READ]
    calibration: Annotated[str, READ]
    metrics: list[str]
    score: Literal["acc", "acc_norm"]
    exact: bool = False
    seed: int
    keys: dict[str, Any]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        pass_, _, budget = studies.sweep_settings(config, w.selector)
        measured = {name: metric for name, metric in METRICS.items() if metric.pass_ in carried(pass_)}
        return cls(
            sweep=paths.sweep(paths.KEY.format(**w), w.removed),
            calibration=paths.calibration(w.model, w.calibration),
            metrics=list(measured),
            score=config.calibrations[w.calibration].score,
            exact=budget == "exact",
            seed=config.seed,
            keys=keys(w),
            follows=entries(**measured),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({METRICS[metric].module for metric in self.metrics}))
