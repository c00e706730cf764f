"""Rule render_report: render the report of a run, one self-contained HTML file."""

from pathlib import Path
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.report import Report
from lamina.registry import declared
from lamina.report import queries as sql
from lamina.reporting.glossary import glossary
from lamina.stages.job import READ, Job, Told
from lamina.study import paths

_TEMPLATE = paths.own("workflow/report/report.html.j2")


class RenderReport(Job):
    """The whole run. `report` says what a variant must keep to be recommended; `names` explains the names in it."""

    OUTPUTS = {"output": "results/report.html"}

    report: Told[Report]
    names: dict[str, Any]
    template: Annotated[str, READ]
    included: Annotated[list[str], READ]
    views: Annotated[list[str], READ]
    queries: Annotated[list[str], READ]
    facts: Annotated[str, READ]
    database: Annotated[str, READ]
    tables: Annotated[list[str], READ]
    figures: Annotated[list[str], READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            report=config.report,
            names=glossary(config),
            template=_TEMPLATE,
            included=[paths.own(f"workflow/report/{name}") for name in ("report.css", "report.js", "explorer.json")],
            views=sql.views(),
            queries=sorted(map(str, Path(paths.own("sql/queries")).glob("*.sql"))),
            facts="results/facts.json",
            database="results/lamina.duckdb",
            tables=[paths.table(table) for table in declared("lamina.tables", "GRAIN")],
            figures=[paths.figure(figure) for figure in declared("lamina.report.figures", "TABLES")],
            **cls.written(w),
        )
