"""Put the blocks of one sweep together."""

import argparse

from lamina.errors import explained
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", required=True, nargs="+")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        # All blocks have the same code, settings and seed; what differs is their number.
        store.write(args.output, store.gather("sweeps", args.blocks), store.kept_provenance(args.blocks[0]))
