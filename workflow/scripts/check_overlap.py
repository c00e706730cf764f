"""Refuse a calibration that holds documents of a benchmark."""

import argparse
import json

from lamina.errors import LaminaError, explained
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--samples", required=True, help="the prepared calibration")
    parser.add_argument("--documents", required=True, help="the prepared task")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        used = set(store.read(args.samples, ["document"])["document"].to_pylist())
        tested = set(store.read(args.documents, ["document"])["document"].to_pylist())
        shared = used & tested
        if shared:
            raise LaminaError(
                f"calibrations.{args.calibration} shares {len(shared)} of its {len(used)} documents with the "
                f"{len(tested)} test documents of benchmark '{args.task}': a score on seen documents says nothing. "
                "Calibrate on another split, or on documents that the benchmark does not use."
            )
        facts = {
            "calibration": args.calibration,
            "task": args.task,
            "documents": len(used),
            "tested": len(tested),
            "shared": 0,
        }
        store.write_text(args.output, json.dumps(facts) + "\n")
