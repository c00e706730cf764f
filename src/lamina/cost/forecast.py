"""What a run would cost, as `make plan` prints it: jobs, arithmetic, time, memory and disk of every stage.

`python -m lamina.cost.forecast FILE` prints what rule `estimate_cost` wrote. Times follow from a rate in TFLOP/s, or
from the pace of this machine, which is measured where there is no GPU.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, explained
from lamina.runtime import devices, resources
from lamina.store import checksum

STAGES = ("capture", "sweep", "search", "repair", "heal", "benchmark")
# Sustained arithmetic of one data-centre GPU in bfloat16, in TFLOP/s: with short sequences it is well below the peak.
RATE = 100.0
SAMPLES = 100  # of a calibration, for the pace of this machine
LARGEST = 2e9  # parameters; a larger model is not loaded only to see how fast it is


@dataclass
class Stage:
    """Cost of one stage; the naive way evaluates each cut model row by row, and does everything else in the same way.

    `memory` is that of its largest job above the process and the weights, `disk` what all its jobs write, in bytes.
    """

    jobs: int = 0
    layer_tokens: float = 0.0
    flops: float = 0.0
    naive_layer_tokens: float = 0.0
    naive_flops: float = 0.0
    memory: float = 0.0
    disk: float = 0.0

    def plus(self, other: "Stage") -> "Stage":
        """Both as one."""
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)
        }
        return Stage(**sums | {"memory": max(self.memory, other.memory)})


def table(stages: Mapping[str, Stage], rate: float) -> str:
    """The estimate as text, at a rate in FLOP/s."""
    heads = f"{'stage':<10}{'jobs':>7}{'layer-tokens':>14}{'PFLOP':>9}{'time':>10}{'naively':>10}{'memory':>9}{'disk':>9}"
    total = Stage()
    for stage in stages.values():
        total = total.plus(stage)
    lines = [
        f"{name:<10}{stage.jobs:>7,}{stage.layer_tokens:>14.3g}{stage.flops / 1e15:>9.3g}"
        f"{duration(stage.flops / rate):>10}{duration(stage.naive_flops / rate):>10}"
        f"{size(stage.memory):>9}{size(stage.disk):>9}"
        for name, stage in {**stages, "all": total}.items()
    ]
    return "\n".join([heads, *lines])


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds >= 0.01 or not seconds else "< 0.01 s"


def size(memory: float) -> str:
    """Bytes as MB or GB; empty where none are counted."""
    return (
        ""
        if not memory
        else f"{memory / 1e9:.3g} GB"
        if memory >= 0.9995e9
        else f"{memory / 1e6:.3g} MB"
    )


def readable(rate: str) -> float:
    """A rate in TFLOP/s from what a user wrote. Raises LaminaError if it is no number above 0."""
    try:
        number = float(rate)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise LaminaError(
            f"RATE={rate}: no device computes at that rate. Write its TFLOP/s, such as RATE=100."
        )
    return number


def whole(jobs: int, computing: int, seconds: float, start: Sequence[float], together: int) -> str:
    """The sentence about a run of `jobs`, of which `computing` need `seconds` in all beside their `start`."""
    if not jobs:
        return "Nothing is left to run."
    seconds += min(jobs, computing) * start[0] + max(0, jobs - computing) * start[1]
    return (
        f"{jobs:,} jobs are left to run. A job starts in {start[0]:.1f} s, and in {start[1]:.1f} s where it "
        f"computes with no model: in all about {duration(seconds / together)}, with {together} at a time."
    )


def start() -> list[float]:
    """Seconds that jobs take to start here, in processes that import what they do: with a model, and any other."""
    took, scripts = [], "snakemake.script, lamina.stages.job, lamina.store.parquet"
    for modules in (
        f"{scripts}, lamina.engine.sweep, lamina.models.load, transformers.modeling_utils",
        scripts,
    ):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
        took.append(time.perf_counter() - began)
    return took


def measure(results: Path, always: bool = False) -> float | None:
    """FLOP/s of a sweep of the largest model of a study, as `lamina.cost.work` counts its work.

    None for a study without a calibration; and, unless it is to be measured `always`, for a model above 2e9 parameters.
    """
    models = {
        path.parent.name: checksum.read_json(path)
        for path in results.glob("models/*/manifest.json")
    }
    name = max(models, key=lambda model: models[model]["parameters"], default="")
    drawn = sorted((results / "calibrations" / name).glob("*.parquet"), key=os.path.getsize)
    if not drawn or (models[name]["parameters"] > LARGEST and not always):
        return None
    import torch

    from lamina.data import calibrations
    from lamina.models.load import load_model

    torch.set_num_threads(resources.threads(os.cpu_count()))
    return pace(
        load_model(models[name]), models[name], calibrations.read(drawn[-1]).samples[:SAMPLES]
    )


def pace(model: Any, manifest: Mapping[str, Any], samples: Sequence[Any]) -> float:
    """FLOP/s of a sweep over samples, the second of two: the first one starts threads and kernels."""
    from lamina.cost import work
    from lamina.cost.estimate import counted
    from lamina.engine import sweep
    from lamina.models.units import all_units

    tokens, units = counted(samples), all_units(manifest["n_layers"], "layer")
    for part in (samples[:1], samples):
        began = time.perf_counter()
        sweep.sweep(model, part, units)
        seconds = time.perf_counter() - began
    layers, _ = work.sweep_work(tokens, manifest["n_layers"], 0, "removal", "layer")
    return work.layer_flops(manifest, tokens) * layers / seconds


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file", type=Path, help="what rule estimate_cost wrote, in the study's results folder"
    )
    parser.add_argument("--rate", help=f"sustained TFLOP/s of one device, by default {RATE:g}")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure this machine, also if it has a GPU"
    )
    parser.add_argument("--jobs", default="0", help="jobs that are left to run")
    parser.add_argument("--cores", default="all", help="cores that a run may use")
    args = parser.parse_args(None if arguments is None else list(arguments))
    asked = None if args.rate is None else readable(args.rate)
    costs, here = checksum.read_json(args.file), len(devices.devices(os.environ))
    stages = {name: Stage(**entry) for name, entry in costs["stages"].items()}
    if (
        asked is None
        and (args.calibrate or not here)
        and (measured := measure(args.file.parent, args.calibrate))
    ):
        rate, message = measured, f"at the {measured / 1e12:.2g} TFLOP/s of the study's own model"
        message = (
            f"Times of one job after the other on this machine, {message}. RATE=100 is a GPU's."
        )
    else:
        rate = (asked or RATE) * 1e12
        message = f"Times of one device at {rate / 1e12:g} TFLOP/s. CALIBRATE=1 measures this machine instead."
    print(table(stages, rate), "", message, sep="\n")
    print(
        "Memory: of the largest job, above the process and the weights. Disk: at most, beside downloaded models."
    )
    total = sum(stage.flops for stage in stages.values()) / rate
    cores = int(args.cores) if args.cores.isdigit() else os.cpu_count() or 1
    computing, together = sum(stage.jobs for stage in stages.values()), here or min(2, cores)
    print(whole(int(args.jobs or 0), computing, total, start(), together))
    print(*costs["notes"], sep="\n", end="\n" if costs["notes"] else "")


if __name__ == "__main__":
    with explained():
        main()
