"""Turn a sweep into relevance scores with intervals, for every metric that it allows."""

import argparse
import json
from pathlib import Path

from lamina.data.calibrations import METADATA_KEY
from lamina.errors import explained
from lamina.relevance.columns import Context
from lamina.relevance.score import relevance
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--score", required=True, choices=["acc", "acc_norm"])
    parser.add_argument("--seed", required=True, type=int, help="of the bootstrap, and of what metrics draw")
    parser.add_argument("--budget", choices=["exact"], help="whose early leavers saw the hardest samples")
    parser.add_argument("--metrics", required=True, type=lambda text: text.split(","), help="those to score, a,b,…")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector, removed")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        sweep = store.read(args.sweep)
        facts = json.loads(store.read(args.calibration, ["sample"]).schema.metadata[METADATA_KEY])
        context = Context(facts["chance_accuracy"], args.score, args.keys["removed"], args.seed, args.budget == "exact")
        rows = relevance(sweep, args.metrics, context, args.seed) if sweep.num_rows else []
        store.write(args.output, store.from_rows("relevance", rows, **args.keys), store.provenance(vars(args)))
