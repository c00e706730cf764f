"""Tokenise a calibration for one model."""

import argparse
import json
from pathlib import Path

from lamina.config import calibrations as entries
from lamina.data import calibrations
from lamina.data.prepare import prepare
from lamina.errors import explained

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", required=True, help="its name in the config")
    parser.add_argument("--entry", required=True, type=json.loads, help="options of its entry in the config, as JSON")
    parser.add_argument("--parts", default={}, type=json.loads, help="the same of what a mixture is made of, by name")
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        manifest = json.loads(args.manifest.read_text())
        entry = entries.read(args.entry)
        parts = {name: entries.read(options) for name, options in args.parts.items()}
        calibrations.write(args.output, prepare(args.calibration, entry, manifest, Path.cwd(), parts))
