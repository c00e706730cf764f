"""Measure size, speed and memory of all variants of one model, each in turn against the base."""

import argparse
import json
from pathlib import Path

from lamina.errors import explained
from lamina.evaluation import efficiency, variants
from lamina.models.load import load_model
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", required=True, help="name of the model in the configuration")
    parser.add_argument("--variants", required=True, help="JSON list, see lamina.evaluation.variants")
    parser.add_argument("--options", type=json.loads, required=True, help="benchmarks: efficiency, as JSON")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    wanted = variants.read(arguments.variants, arguments.model)
    rows = []
    if wanted:
        base = load_model(json.loads(arguments.manifest.read_text(encoding="utf-8")))
        pairs = ((description.keys, model) for description, model in variants.in_turn(base, wanted))
        rows = efficiency.measure(base, pairs, efficiency.Settings(**arguments.options))
    store.write(arguments.output, store.from_rows("efficiency", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
