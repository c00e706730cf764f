"""Draw one figure from the tables of a run, and write what it draws."""

import argparse
import importlib
import re
from pathlib import Path

from lamina.errors import explained
from lamina.figures.drawing import drawn
from lamina.reporting import database
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", required=True, help="name of a module of lamina.figures")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="Parquet files of its TABLES")
    parser.add_argument("--views", type=Path, default=Path(database.VIEWS))
    parser.add_argument("--output", type=Path, required=True, help="SVG")
    parser.add_argument("--data", type=Path, required=True, help="CSV of what is drawn")
    arguments = parser.parse_args()
    # By name, so that an edit to one figure makes only that figure stale.
    module = importlib.import_module(f"lamina.figures.{arguments.figure}")
    asked = re.findall(r"\w+", getattr(module, "QUERY", ""))  # for the caption, the file and the drawing
    connection = database.connect(arguments.views, arguments.tables, computed=asked)
    drawing = drawn(arguments.figure, connection)
    store.write_text(arguments.data, drawing.csv)
    store.write_text(arguments.output, drawing.svg)


if __name__ == "__main__":
    with explained():
        main()
