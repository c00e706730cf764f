"""Rule check_overlap: refuse a calibration that holds documents of a benchmark."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths


class CheckOverlap(Job):
    """One calibration against one benchmark."""

    OUTPUTS = {"output": paths.overlap("{model}", "{calibration}", "{task}")}

    calibration: str
    task: str
    samples: Annotated[str, READ]
    documents: Annotated[str, READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        samples, documents = paths.calibration(w.model, w.calibration), paths.task(w.task)
        return cls(calibration=w.calibration, task=w.task, samples=samples, documents=documents, **cls.written(w))
