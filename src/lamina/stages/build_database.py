"""Rule build_database: build the DuckDB database of a run, the views of sql/*.sql over its tables."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.registry import declared
from lamina.report import queries as sql
from lamina.stages.gather_table import schemas
from lamina.stages.job import READ, Job
from lamina.study import paths


class BuildDatabase(Job):
    """All tables, kept under the name of the `study`."""

    OUTPUTS = {"output": "results/lamina.duckdb"}

    views: Annotated[list[str], READ]
    tables: Annotated[list[str], READ]
    study: str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        tables = [paths.table(table) for table in declared("lamina.tables", "GRAIN")]
        return cls(views=sql.views(), tables=tables, study=w.study, **cls.written(w))

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas(declared("lamina.tables", "GRAIN"))
