"""Rule estimate_cost: count the work of a configuration from what `prepare` gives, before any of it is done."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths
from lamina.study import requests as studies


class EstimateCost(Job):
    """The whole configuration, with all defaults; `strategies` are those of its searches, which are rehearsed."""

    OUTPUTS = {"output": "results/cost.json"}

    config: dict[str, Any]
    strategies: list[str] = []
    manifests: Annotated[list[str], READ]
    calibrations: Annotated[list[str], READ]
    tasks: Annotated[list[str], READ] = []
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            config=config.plain(),
            strategies=sorted({config.selectors[name].strategy for _, _, name in studies.searches(config)}),
            manifests=[paths.manifest(model) for model in config.models],
            calibrations=[paths.calibration(*place) for place in studies.calibrations(config)],
            tasks=[paths.task(task) for task in config.benchmarks.tasks],
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(f"lamina.selection.strategies.{strategy}" for strategy in self.strategies)

    @property
    def described_by(self) -> tuple[str, ...]:
        """The studies decide what is counted."""
        return ("lamina.study.requests",)
