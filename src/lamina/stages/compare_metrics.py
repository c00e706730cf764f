"""Rule compare_metrics: compare every metric with accuracy relevance, over units and calibrations."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS
from lamina.stages.gather_table import schemas
from lamina.stages.job import READ, Job
from lamina.study import paths


class CompareMetrics(Job):
    """Table agreements, for every metric that has scores."""

    OUTPUTS = {"output": paths.table("agreements")}

    relevance: Annotated[str, READ]
    sweeps: Annotated[str, READ]
    calibrations: Annotated[str, READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            relevance=paths.table("relevance"),
            sweeps=paths.table("sweeps"),
            calibrations=paths.table("calibrations"),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({metric.module for metric in METRICS.values()}))

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas(["agreements"])
