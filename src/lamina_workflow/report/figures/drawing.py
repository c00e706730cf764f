"""Turn the tables of a run into one figure: its picture, its caption and its numbers."""

from importlib import import_module
from typing import NamedTuple

import duckdb
from matplotlib.figure import Figure

from lamina_workflow.report.answers import answer_question, as_csv
from lamina_workflow.report.figures import style
from lamina_workflow.report.queries import explain_empty_answer, read_query


class Drawing(NamedTuple):
    """One figure of a run."""

    figure: Figure  # the picture; without rows, a picture that says why there is nothing to show
    svg: str  # the picture as text, the same bytes for the same rows
    caption: str  # what the picture shows, and the number of samples; empty without rows
    csv: str  # the drawn rows; empty without rows


def draw_figure(name: str, connection: duckdb.DuckDBPyConnection) -> Drawing:
    """The figure `name`, a module of `lamina_workflow.report.figures`."""
    module = import_module(f"lamina_workflow.report.figures.{name}")
    question = module.QUERIES[0]
    has_own_rows = hasattr(module, "read_rows")
    rows = module.read_rows(connection) if has_own_rows else answer_question(connection, question)
    if not rows:
        figure = style.draw_empty(explain_empty_answer(read_query(question)))
        return Drawing(figure, style.render_svg(figure, name), "", "")
    figure = module.draw(rows, style.Theme(connection))
    caption = module.write_caption(rows)
    return Drawing(figure, style.render_svg(figure, name, caption), caption, as_csv(rows))
