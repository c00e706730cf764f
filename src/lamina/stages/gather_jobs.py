"""Rule gather_jobs: gather the cost of every job from the records of Snakemake."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.registry import declared
from lamina.stages.gather_table import schemas
from lamina.stages.job import READ, Job
from lamina.study import paths


class GatherJobs(Job):
    """The table of jobs. It waits for the other tables, because then all other jobs have left their records."""

    OUTPUTS = {"output": paths.table("jobs")}

    tables: Annotated[list[str], READ]
    folder: str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        tables = [paths.table(table) for table in declared("lamina.tables", "GRAIN") if table != "jobs"]
        return cls(tables=tables, folder=f"{paths.RESULTS}/jobs", **cls.written(w))

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas(["jobs"])
