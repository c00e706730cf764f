"""Rule compare_selectors: test every selector against every other one at equal size and repair."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.report import queries as sql
from lamina.stages.gather_table import schemas
from lamina.stages.job import READ, Job
from lamina.study import paths


class CompareSelectors(Job):
    """Table comparisons."""

    OUTPUTS = {"output": paths.table("comparisons")}

    views: Annotated[list[str], READ]
    tables: Annotated[list[str], READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            views=sql.views(),
            tables=[paths.table(name) for name in ("calibrations", "benchmarks", "benchmark_samples")],
            **cls.written(w),
        )

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas(["comparisons"])
