"""Build the DuckDB database of a run: the views of `sql/views.sql` over its tables."""

import argparse
from pathlib import Path

from lamina.errors import explained
from lamina.reporting import database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=Path, required=True, help="SQL that creates the views")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="Parquet files, all of them")
    parser.add_argument("--study", default="study", help="name under which the tables are kept")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    database.build(arguments.views, arguments.tables, arguments.output, arguments.study)


if __name__ == "__main__":
    with explained():
        main()
