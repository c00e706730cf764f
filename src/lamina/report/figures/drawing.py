"""From the tables of a run to one figure: its picture, its caption, and its numbers."""

from typing import NamedTuple

import duckdb
from matplotlib.figure import Figure

from lamina.modules import load
from lamina.report import queries as sql
from lamina.report.answers import answer, as_csv
from lamina.report.figures import style


class Drawing(NamedTuple):
    """One figure of a run."""

    figure: Figure  # the picture; without rows, a picture that says why there is nothing to show
    svg: str  # the picture as text, the same bytes for the same rows
    caption: str  # what the picture shows, and the number of samples; empty without rows
    csv: str  # the drawn rows; empty without rows


def drawn(name: str, connection: duckdb.DuckDBPyConnection) -> Drawing:
    """The figure `name`, a module of `lamina.report.figures`, whose docstring says what such a module holds."""
    module = load(f"lamina.report.figures.{name}")
    question = module.QUERIES[0]
    rows = module.data(connection) if hasattr(module, "data") else answer(connection, question)
    if not rows:
        figure = style.empty(sql.why_empty(sql.query_text(question)))
        return Drawing(figure, style.svg(figure, name), "", "")
    figure, caption = module.draw(rows, style.Theme(connection)), module.caption(rows)
    return Drawing(figure, style.svg(figure, name, caption), caption, as_csv(rows))
