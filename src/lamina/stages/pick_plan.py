"""Rule pick_plan: hand out the plan of one size from those that a search found."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths


class PickPlan(Job):
    """One size."""

    OUTPUTS = {"output": paths.plan(paths.KEY, "{removed}")}

    plans: Annotated[str, READ]
    removed: int
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(plans=paths.found_plans(paths.KEY.format(**w)), removed=int(w.removed), **cls.written(w))
