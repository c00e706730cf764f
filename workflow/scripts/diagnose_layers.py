"""Measure what the layers of an unpruned model do on a calibration or a file, with nothing removed."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.config import diagnoses
from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model, load_tokenizer
from lamina.sweep import room
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--given", required=True, type=Path, help="the calibration, or the file that the options name")
    parser.add_argument("--diagnosis", required=True, help="name of the diagnosis in the configuration")
    parser.add_argument("--options", required=True, type=json.loads, help="its options, as JSON")
    parser.add_argument("--tokens", required=True, help="budget of one pass, or auto")
    parser.add_argument("--keys", required=True, type=json.loads, help="model and calibration, as JSON")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        options = diagnoses.read(args.options)
        method = importlib.import_module(f"lamina.diagnosis.{options.kind}")
        manifest = json.loads(args.manifest.read_text())
        if options.FILED:
            given = method.read(args.given, load_tokenizer(manifest), options)
        else:
            given = calibrations.read(args.given).samples
        model = load_model(manifest)
        tokens = room.tokens(args.tokens, model, [] if options.FILED else given)
        rows = method.diagnose(model, given, options, tokens)
        keys = args.keys | {"diagnosis": args.diagnosis, "kind": options.kind}
        store.write(args.output, store.from_rows("diagnoses", rows, **keys), store.provenance(vars(args)))
