"""Compare the accuracy relevance that each unit of unpruned models has for pairs of calibrations."""

import argparse
from pathlib import Path

from pyarrow import dataset

from lamina.errors import explained
from lamina.relevance.dissociation import dissociations
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, nargs=2, required=True, help="sweeps, calibrations")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with explained():
        sweeps, calibrations = args.tables
        found = dissociations(store.read(calibrations).to_pylist(), dataset.dataset(sweeps))
        store.write(args.output, store.from_rows("dissociations", found))
