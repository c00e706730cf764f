"""Render the report of a run: one self-contained HTML file."""

import argparse
import json
from pathlib import Path

from lamina.errors import explained
from lamina.reporting import database, report
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="Parquet files, all of them")
    parser.add_argument("--figures", type=Path, required=True, help="folder of the SVG figures")
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--facts", type=Path, required=True, help="JSON: versions, seed, commit, wall time, machine")
    parser.add_argument("--views", type=Path, default=Path(database.VIEWS))
    parser.add_argument("--queries", type=Path, default=Path("sql/queries"))
    parser.add_argument("--keep", type=float, required=True, help="share of a task that a variant must keep")
    parser.add_argument("--general-text", type=float, help="most that general text's perplexity may be, × base")
    parser.add_argument("--names", type=json.loads, default={}, help="JSON: what names mean, by section and name")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    connection = database.connect(arguments.views, arguments.tables, computed=("against_base", "repairs"))
    facts = json.loads(arguments.facts.read_text(encoding="utf-8"))
    given = facts, arguments.keep, arguments.general_text, arguments.names
    page = report.render(connection, arguments.queries, arguments.figures, arguments.template, *given)
    store.write_text(arguments.output, page)


if __name__ == "__main__":
    with explained():
        main()
