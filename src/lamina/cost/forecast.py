"""What a run would cost, as `make plan` prints it: jobs, arithmetic, time and memory of every stage.

`python -m lamina.cost.forecast FILE` prints what rule `estimate_cost` wrote. Times follow from a rate in TFLOP/s, or
from the pace of this machine if `lamina.cost.pace` has measured it. Without both and without a GPU, two seconds of
matrix products measure the rate of this machine.
"""

import argparse
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lamina.errors import LaminaError, explained
from lamina.runtime import devices
from lamina.store import checksum

STAGES = ("capture", "sweep", "search", "repair", "heal", "benchmark")
# Sustained arithmetic of one data-centre GPU in bfloat16, in TFLOP/s: with short sequences it is well below the peak.
RATE = 100.0
# A product of the size of small layers, (tokens, C) by (C, inner), and the seconds for which it is repeated.
PRODUCT, LASTING = (512, 576, 1536), 2.0


@dataclass
class Stage:
    """Cost of one stage; the naive way evaluates each cut model row by row, and does everything else in the same way.

    `memory` is that of its largest job, in bytes above the process and the weights.
    """

    jobs: int = 0
    layer_tokens: float = 0.0
    flops: float = 0.0
    naive_layer_tokens: float = 0.0
    naive_flops: float = 0.0
    memory: float = 0.0

    def add(self, layer_tokens: float, naive: float, flops_each: float) -> None:
        """Count work of one job, in layer-tokens that cost `flops_each`."""
        self.layer_tokens += layer_tokens
        self.flops += layer_tokens * flops_each
        self.naive_layer_tokens += naive
        self.naive_flops += naive * flops_each

    def together(self, other: "Stage") -> "Stage":
        """Both stages as one."""
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return Stage(**sums | {"memory": max(self.memory, other.memory)})


@dataclass(frozen=True)
class Pace:
    """How fast a machine is: FLOP/s by stage, `rate` for any other stage, and the seconds before a job computes."""

    rate: float
    stages: Mapping[str, float]
    start: float = 0.0

    def seconds(self, name: str, flops: float, jobs: float) -> float:
        """Seconds for the arithmetic of a stage, in jobs that run one after the other."""
        return flops / self.stages.get(name, self.rate) + jobs * self.start


def table(stages: Mapping[str, Stage], pace: Pace) -> str:
    """The estimate as text."""
    lines = [
        f"{'stage':<10}{'jobs':>8}{'layer-tokens':>14}{'PFLOP':>10}{'time':>9}{'memory':>10}{'naively':>11}{'time':>9}"
    ]
    total, spent, naive = Stage(), 0.0, 0.0
    for name, stage in stages.items():
        times = pace.seconds(name, stage.flops, stage.jobs), pace.seconds(name, stage.naive_flops, stage.jobs)
        lines.append(_line(name, stage, *times))
        total, spent, naive = total.together(stage), spent + times[0], naive + times[1]
    return "\n".join([*lines, _line("all", total, spent, naive)])


def _line(name: str, stage: Stage, seconds: float, naive: float) -> str:
    counted = f"{stage.jobs:>8,}{stage.layer_tokens:>14.3g}{stage.flops / 1e15:>10.3g}{duration(seconds):>9}"
    return f"{name:<10}{counted}{size(stage.memory):>10}{stage.naive_layer_tokens:>11.3g}{duration(naive):>9}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds >= 0.01 or not seconds else "< 0.01 s"


def size(memory: float) -> str:
    """Bytes as MB or GB; empty where none are counted."""
    return "" if not memory else f"{memory / 1e9:.3g} GB" if memory >= 1e9 else f"{memory / 1e6:.3g} MB"


def machine_rate() -> float:
    """FLOP/s of this machine's processors in products like those of layers, in float32."""
    tokens, channels, inner = PRODUCT
    left, right = np.ones((tokens, channels), np.float32), np.ones((channels, inner), np.float32)
    left @ right  # the first product starts threads
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < LASTING:
        left @ right
        count += 1
    return 2.0 * tokens * channels * inner * count / (time.perf_counter() - begun)


def readable(rate: str) -> float:
    """A rate in TFLOP/s from what a user wrote. Raises LaminaError if it is no number above 0."""
    try:
        number = float(rate)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise LaminaError(f"RATE={rate}: no device computes at that rate. Write its TFLOP/s, such as RATE=100.")
    return number


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what rule estimate_cost wrote")
    parser.add_argument("--rate", help=f"sustained TFLOP/s of one device, by default {RATE:g}")
    parser.add_argument("--pace", type=Path, help="what lamina.cost.pace wrote, if it did")
    args = parser.parse_args(None if arguments is None else list(arguments))
    rate = None if args.rate is None else readable(args.rate)
    costs = checksum.read_json(args.file)
    if not rate and args.pace and args.pace.exists():
        measured = checksum.read_json(args.pace)
        pace = Pace(**{name: measured[name] for name in ("rate", "stages", "start")})
        message = f"Times of one job after the other on {measured['machine']}, as measured ({args.pace})."
    elif rate or devices.devices(os.environ):
        pace = Pace((rate or RATE) * 1e12, {})
        message = f"Times of one device at {rate or RATE:g} TFLOP/s, beside loading and starting."
        message += "" if rate else " CALIBRATE=1 measures this machine instead."
    else:
        pace = Pace(machine_rate(), {})
        message = (
            f"Times of this machine, which has no GPU, at the {pace.rate / 1e12:.2g} TFLOP/s of products of matrices, "
            "beside loading and starting. CALIBRATE=1 measures each stage, RATE=100 is a GPU's."
        )
    stages = {name: Stage(**entry) for name, entry in costs["stages"].items()}
    print(table(stages, pace), "", message, "Memory of the largest job, above the process and the weights.", sep="\n")
    print(*costs["notes"], sep="\n", end="\n" if costs["notes"] else "")


if __name__ == "__main__":
    with explained():
        main()
