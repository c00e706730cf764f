"""Rule compare_tasks: compare the accuracy relevance of units of unpruned models for pairs of calibrations."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.gather_table import schemas
from lamina.stages.job import READ, Job
from lamina.study import paths


class CompareTasks(Job):
    """Table dissociations."""

    OUTPUTS = {"output": paths.table("dissociations")}

    sweeps: Annotated[str, READ]
    calibrations: Annotated[str, READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(sweeps=paths.table("sweeps"), calibrations=paths.table("calibrations"), **cls.written(w))

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas(["dissociations"])
