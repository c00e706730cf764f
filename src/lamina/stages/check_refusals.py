"""Rule check_refusals: end a run with an error where a plan or a repair that the configuration asks for was refused."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths


class CheckRefusals(Job):
    """The last job of a run: all else is done by then."""

    OUTPUTS = {"output": "results/refusals.txt"}

    plans: Annotated[str, READ]
    patches: Annotated[str, READ]
    report: Annotated[str, READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        plans, patches = paths.table("plans"), paths.table("patches")
        return cls(plans=plans, patches=patches, report="results/report.html", **cls.written(w))
