"""Size, speed and memory of one variant per cost among all variants of a model, in turn against the base."""

import argparse
import json
from pathlib import Path

from lamina.config.benchmarks import Efficiency
from lamina.errors import explained
from lamina.evaluation import efficiency, variants
from lamina.models.load import load_model
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--variants", type=Variant.parse, nargs="*", default=[], help="variants of one model, as text")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the variants' files are")
    parser.add_argument("--options", type=json.loads, required=True, help="benchmarks: efficiency, as JSON")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    rows = []
    if arguments.variants:
        base = load_model(json.loads(arguments.manifest.read_text(encoding="utf-8")))
        made = [variant for variant in arguments.variants if not variants.refused(variant, arguments.results)]
        plans = {variant: variants.plan(variant, arguments.results) for variant in made}
        chosen = efficiency.one_per_cost(plans)
        pairs = (
            (variant.row() | {"runs": chosen[variant], "timed": str(variant)}, model)
            for variant, model in variants.in_turn(base, list(chosen), arguments.results)
        )
        rows = efficiency.measure(base, pairs, Efficiency.from_options(arguments.options))
    store.write(arguments.output, store.from_rows("efficiency", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
