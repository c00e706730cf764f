"""Fit one recovery for all plan sizes of a selector: one model load, shared forward passes."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.models.structure import layers_of
from lamina.recovery import patch, report
from lamina.streams import moments
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="plan JSON files, one per size")
    parser.add_argument("--recovery", required=True, help="name of the recovery in the configuration")
    parser.add_argument("--recovery-options", type=json.loads, required=True, help="its entry, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help=".safetensors")
    parser.add_argument("--table", type=Path, required=True, help=".parquet of table patches")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.plans]
    plans = [plan for plan in plans if plan["units"]]
    tensors, rows = {}, []
    if plans:
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
        calibration = calibrations.read(arguments.calibration)
        method = importlib.import_module(f"lamina.recovery.{arguments.recovery_options['method']}")
        model = load_model(manifest)
        wanted = [report.boundaries(plan, len(layers_of(model))) for plan in plans]
        every = sorted({boundary for part in wanted for boundary in part})
        sequences = calibration.sequences()
        fits, counts = {}, {}
        for boundary, statistics in moments.collect(model, sequences, every, arguments.seed):
            fits[boundary] = method.fit(statistics, arguments.recovery_options)
            counts[boundary] = statistics.counts()
        validated = {boundary: fit.validated for boundary, fit in fits.items()}
        errors = moments.absolute_errors(model, sequences, validated, arguments.seed)
        for plan, part in zip(plans, wanted, strict=True):
            tensors |= patch.tensors(plan["removed"], {boundary: fits[boundary].patch for boundary in part})
            rows += [
                report.row(plan, arguments.recovery, boundary, fits[boundary], errors[boundary], counts[boundary])
                for boundary in part
            ]
    patch.save(arguments.output, tensors)
    store.write(arguments.table, store.from_rows("patches", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
