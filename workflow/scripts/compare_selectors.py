"""Test every selector against every other one at equal size and repair, on the documents that both were tested on."""

import argparse
from pathlib import Path

from lamina.errors import explained
from lamina.evaluation.comparisons import compared
from lamina.reporting import database
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=Path, required=True, help="SQL that creates the views")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="calibrations, benchmarks, their samples")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with explained():
        found = compared(database.connect(args.views, args.tables))
        store.write(args.output, store.from_rows("comparisons", found))
