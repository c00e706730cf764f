"""Fit one recovery for all plan sizes of a selector: one model load, shared forward passes."""

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.config import recoveries
from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.models.structure import layers_of
from lamina.models.variant import Boundary
from lamina.recovery import check, patch, protocol, report
from lamina.streams import taps
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="plan JSON files, one per size")
    parser.add_argument("--recovery", required=True, help="name of the recovery in the configuration")
    parser.add_argument("--options", type=json.loads, required=True, help="its options, as JSON")
    parser.add_argument("--data", nargs="*", default=[], help="NAME=FILE of the calibrations that its options add")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help=".safetensors")
    parser.add_argument("--table", type=Path, required=True, help=".parquet of table patches")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options = recoveries.read(arguments.options)
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.plans]
    plans = [plan for plan in plans if plan["units"]]
    tensors, rows, reasons = {}, [], {}
    if plans:
        method = protocol.method(options.method)
        model = load_model(json.loads(arguments.manifest.read_text(encoding="utf-8")))
        own = plans[0]["calibration"]
        files = {own: arguments.calibration, **dict(entry.split("=", 1) for entry in arguments.data)}
        weights = options.weights(own)
        read = {name: calibrations.read(files[name]) for name in weights}
        wanted = {plan["removed"]: report.boundaries(plan, len(layers_of(model))) for plan in plans}
        for plan in list(plans):
            found = {at: reason for at in wanted[plan["removed"]] if (reason := protocol.refused(method, at))}
            rows += [report.row(_variant(plan, arguments.recovery), at, {"refused": why}) for at, why in found.items()]
            if found:
                plans.remove(plan)
                del wanted[plan["removed"]]
                reasons[plan["removed"]] = next(iter(found.values()))
        seed = arguments.seed
        sources = [protocol.Source(read[name].sequences(), weights[name]) for name in weights]
        if not plans:
            groups = []
        elif options.automatic(own):
            weighing = importlib.import_module("lamina.recovery.weighing")
            groups = [
                (fits, _facts(model, weighed, method, fits, seed), chosen)
                for weighed, fits, chosen in weighing.groups(model, read, plans, wanted, options, seed)
            ]
        elif getattr(options, "refit", False):
            chained, groups = importlib.import_module("lamina.recovery.refit"), []
            for removed, part in wanted.items():
                fits, behind = chained.fit(model, sources, part, options, seed)
                facts: dict[Boundary, dict[str, Any]] = {}
                for boundary, fit in fits.items():
                    facts |= _facts(model, sources, method, {boundary: fit}, seed, behind[boundary])
                groups.append((fits, facts, {removed: {}}))
        else:
            every = sorted({boundary for part in wanted.values() for boundary in part})
            collected = method.collect(model, sources, every, options, seed)
            fits = {boundary: method.fit(statistics, options) for boundary, statistics in collected}
            groups = [(fits, _facts(model, sources, method, fits, seed), dict.fromkeys(wanted, {}))]
        for fits, facts, chosen in groups:
            for plan in (plan for plan in plans if plan["removed"] in chosen):
                part = wanted[plan["removed"]]
                tensors |= patch.tensors(plan["removed"], {boundary: fits[boundary].tensors for boundary in part})
                variant = _variant(plan, arguments.recovery)
                rows += [report.row(variant, boundary, facts[boundary] | chosen[plan["removed"]]) for boundary in part]
    patch.save(arguments.output, options.method, tensors, reasons)
    store.write(arguments.table, store.from_rows("patches", rows), store.provenance(vars(arguments)))


def _variant(plan: Mapping[str, Any], recovery: str) -> Variant:
    return Variant(**{key: plan[key] for key in ("model", "calibration", "selector", "removed")}, recovery=recovery)


def _facts(
    model: PreTrainedModel,
    sources: Sequence[protocol.Source],
    method: protocol.Repair,
    fits: Mapping[Boundary, protocol.Fit],
    seed: int,
    run: taps.Run = taps.run,
) -> dict[Boundary, dict[str, Any]]:
    """What table `patches` says of each fit; errors token by token where it is a linear map of the stream."""
    maps = {boundary: method.as_patch(fit.validated) for boundary, fit in fits.items()}
    linear = {boundary: found for boundary, found in maps.items() if found is not None}
    checked = check.measure(model, sources, linear, seed, run=run) if linear else {}
    return {
        boundary: {**fit.facts, **report.shape(method.as_patch(fit.tensors)), **checked.get(boundary, {})}
        for boundary, fit in fits.items()
    }


if __name__ == "__main__":
    with explained():
        main()
