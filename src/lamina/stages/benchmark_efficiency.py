"""Rule benchmark_efficiency: size, speed and memory of one variant per cost, in turn against the base."""

from typing import Any, Self

from lamina.config.benchmarks import Efficiency
from lamina.config.configuration import Configuration
from lamina.stages.job import Told, minutes
from lamina.stages.measuring import Measuring, measured
from lamina.study import paths
from lamina.study import requests as studies


class BenchmarkEfficiency(Measuring):
    """All variants of one model. The first of each cost is timed; `structures` is the largest number of those."""

    OUTPUTS = {"output": paths.efficiency("{model}")}
    PLACED = ("structures",)

    efficiency: Told[Efficiency]
    structures: int
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            efficiency=config.benchmarks.efficiency or Efficiency(),
            structures=studies.structures(config, w.model),
            **measured(config, w.model, studies.efficiency_variants(config, w.model)),
            **cls.written(w),
        )

    def minutes(self, attempt: int) -> int:
        """Time limit of a job that measures fewer variants than it reads the files of."""
        return minutes(self._described(), attempt, self.structures)
