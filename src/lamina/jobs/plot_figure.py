"""Rule plot_figure: draw one figure from the tables of a run, and write what it draws."""

from typing import Annotated, Any, Self

from lamina import paths, sql
from lamina.config.configuration import Configuration
from lamina.declared import declared
from lamina.jobs.job import READ, Job


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
            queries=[sql.query(name) for name in declared("lamina.figures", "QUERIES")[w.figure]],
            tables=[paths.table(table) for table in declared("lamina.figures", "TABLES")[w.figure]],
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        scored = declared("lamina.figures", "METRICS").get(self.figure, ())  # scores that the figure computes anew
        return (f"lamina.figures.{self.figure}", *(f"lamina.relevance.{metric}" for metric in scored))
