"""Compare the residual streams at all pairs of layer boundaries."""

import argparse
import json
from pathlib import Path

from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.streams.capture import capture
from lamina.sweep import room
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument("--tokens", required=True, help="budget of one pass, or auto")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        model = load_model(json.loads(args.manifest.read_text()))
        calibration = calibrations.read(args.calibration)
        tokens = room.tokens(args.tokens, model, calibration.samples)
        rows = capture(model, calibration.sequences(), tokens)
        keys = {"model": args.output.parent.name, "calibration": args.output.stem}
        store.write(args.output, store.from_rows("activations", rows, **keys), store.provenance(vars(args)))
