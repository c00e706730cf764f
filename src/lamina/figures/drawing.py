"""From the tables of a run to one figure: its picture, what it shows in words, and its numbers."""

import csv
import io
from dataclasses import dataclass

import duckdb
from matplotlib.figure import Figure

from lamina import sql
from lamina.figures import style
from lamina.modules import load
from lamina.tables.answers import answer


@dataclass(frozen=True)
class Drawing:
    """One figure of a run.

    Attributes
    ----------
    figure : the picture; one that says why there is nothing to show, where there is nothing.
    svg : the same as text, the same bytes for the same rows.
    caption : what it shows and from how many samples; empty where there is nothing to show.
    csv : the rows that are drawn; empty without rows.
    """

    figure: Figure
    svg: str
    caption: str
    csv: str


def drawn(name: str, connection: duckdb.DuckDBPyConnection) -> Drawing:
    """The figure `name`, a module of `lamina.figures`.

    It has QUERIES, the questions of `sql/queries` that it asks. Its `draw` and `caption` are handed the answer to the
    first, or what its function `data` computes from the answers, and are not called where that is empty.
    """
    module = load(f"lamina.figures.{name}")
    question = module.QUERIES[0]
    rows = module.data(connection) if hasattr(module, "data") else answer(connection, question)
    if not rows:
        figure = style.empty(sql.why_empty(sql.query_text(question)))
        return Drawing(figure, style.svg(figure, name), "", "")
    figure, caption = module.draw(rows, style.Theme(connection)), module.caption(rows)
    numbers = io.StringIO()
    table = csv.DictWriter(numbers, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return Drawing(figure, style.svg(figure, name, caption), caption, numbers.getvalue())
