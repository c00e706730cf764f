"""Find a model, check what it is, and write its manifest."""

import argparse
import json
from pathlib import Path

from lamina.config import models
from lamina.errors import explained
from lamina.models.manifest import describe, find_model
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its name in the config")
    parser.add_argument("--entry", required=True, type=json.loads, help="options of its entry in the config, as JSON")
    parser.add_argument("--folder", type=Path, help="its checkpoint, where its source is a file in another format")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        entry = models.read(args.entry)
        folder = args.folder.resolve() if args.folder else find_model(args.model, entry, Path.cwd())
        manifest = describe(args.model, entry, folder)
        store.write_text(args.output, json.dumps(manifest, indent=2) + "\n")
