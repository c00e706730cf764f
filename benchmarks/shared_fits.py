"""Repairs fitted from one pass of a selector, against a job for each: processor seconds of loading and fitting.

    python benchmarks/shared_fits.py MODEL [--texts 100 --length 128]

MODEL is the folder of a model with at least 29 layers. Three plans of seven layers stand for three selectors: a block,
and two of scattered layers. Each gets ghost, linearpatch and replaceme on random tokens, whose fits cost what those of
text cost. Every job loads the model, as those of a run do; imports are not counted, since jobs on one machine share
them.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lamina.config import repairs
from lamina.engine.sources import Source
from lamina.models.surgery import runs
from lamina.repair import check, fit_rows, protocol, shared

PLANS = (range(20, 27), (12, 13, 14, 15, 17, 25, 26), (13, 14, 15, 16, 18, 19, 20))
METHODS = ("ghost", "linearpatch", "replaceme")


def loaded(folder: Path) -> Any:
    """The model, all of whose weights were read."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    sum(float(each.sum()) for each in model.parameters())
    return model


def alone(folder: Path, sources: list[Source], boundaries: list[tuple[int, int]], name: str) -> None:
    """One job of one repair."""
    model, method, options = loaded(folder), protocol.method(name), repairs.Repair.from_options({"method": name})
    fits = {at: method.fit(part, options) for at, part in method.collect(model, sources, boundaries, options, 0)}
    maps = {at: each for at, fit in fits.items() if (each := method.as_patch(fit.validated)) is not None}
    checked = check.measure(model, sources, maps, 0) if maps else {}
    for at, fit in fits.items():
        fit_rows.facts(method, fit, checked.get(at, {}))


def together(folder: Path, sources: list[Source], boundaries: list[tuple[int, int]]) -> None:
    """One job of all repairs."""
    options = {name: repairs.Repair.from_options({"method": name}) for name in METHODS}
    wanted = {name: shared.Wanted(entry, frozenset(boundaries)) for name, entry in options.items()}
    list(shared.fitted(loaded(folder), sources, wanted, 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sources = [Source(torch.randint(4, 1000, (args.texts, args.length), generator=generator).tolist())]
    depth, spent = len(loaded(args.model).base_model.layers), {"alone": 0.0, "together": 0.0}
    for plan in PLANS:
        boundaries = runs(plan, depth)
        began = time.process_time()
        together(args.model, sources, boundaries)
        middle = time.process_time()
        for name in METHODS:
            alone(args.model, sources, boundaries, name)
        spent["together"] += middle - began
        spent["alone"] += time.process_time() - middle
    print(json.dumps({**spent, "ratio": spent["alone"] / spent["together"], "threads": torch.get_num_threads()}))
