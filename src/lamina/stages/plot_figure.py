"""Rule plot_figure: draw one figure from the tables of a run, and write what it draws."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS
from lamina.registry import declared
from lamina.report import queries as sql
from lamina.stages.job import READ, Job
from lamina.study import paths


class PlotFigure(Job):
    """One figure from the tables that it declares. It opens no other: another job may be writing that one anew."""

    OUTPUTS = {"output": paths.figure("{figure}"), "data": paths.figure_data("{figure}")}

    figure: str
    views: Annotated[list[str], READ]
    queries: Annotated[list[str], READ]
    tables: Annotated[list[str], READ]
    output: str
    data: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            figure=w.figure,
            views=sql.views(),
            queries=[sql.query(name) for name in declared("lamina.report.figures", "QUERIES")[w.figure]],
            tables=[paths.table(table) for table in declared("lamina.report.figures", "TABLES")[w.figure]],
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        scored = declared("lamina.report.figures", "METRICS").get(
            self.figure, ()
        )  # scores that the figure computes anew
        return (f"lamina.report.figures.{self.figure}", *sorted({METRICS[metric].module for metric in scored}))
