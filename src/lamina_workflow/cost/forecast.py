"""What a run would cost, as `make plan` prints it.

These are jobs, arithmetic, time, memory and disk of every stage.

`python -m lamina_workflow.cost.forecast FILE` prints what rule `estimate_cost` wrote. Times follow
from a rate in TFLOP/s, or from the rate of this machine, which is measured where there is no GPU.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from lamina.errors import LaminaError, report_errors
from lamina.store import checksum
from lamina_workflow.runtime import devices, resources
from lamina_workflow.runtime.waiting import saying_what_goes_on

STAGES = ("prepare", "capture", "sweep", "search", "repair", "heal", "benchmark")
# Sustained arithmetic of one data-centre GPU in bfloat16, in TFLOP/s. With short sequences, it is
# well below the peak.
GPU_RATE = 100.0
TERA = 1e12
N_MEASURED_SAMPLES = 100  # of a calibration, at most, to measure this machine's rate
N_FIRST_SAMPLES = 4
MEASURED_SECONDS = 20.0  # after which no more samples are measured
MAX_MEASURED_PARAMETERS = 2e9  # loading a larger model only to measure its speed takes too long
N_JOBS_ON_CPU = 2  # at a time, if there is no GPU


@dataclass
class Stage:
    """The cost of one stage.

    The naive way evaluates each pruned model alone and row by row, and does everything else in the
    same way.
    """

    jobs: int = 0
    layer_tokens: float = 0.0
    flops: float = 0.0
    naive_layer_tokens: float = 0.0
    naive_flops: float = 0.0
    memory: float = 0.0
    """Bytes of the largest job, in addition to the process and the weights."""
    disk: float = 0.0
    """Bytes that all jobs write."""

    def plus(self, other: "Stage") -> "Stage":
        """The sum of both."""
        return Stage(
            jobs=self.jobs + other.jobs,
            layer_tokens=self.layer_tokens + other.layer_tokens,
            flops=self.flops + other.flops,
            naive_layer_tokens=self.naive_layer_tokens + other.naive_layer_tokens,
            naive_flops=self.naive_flops + other.naive_flops,
            memory=max(self.memory, other.memory),
            disk=self.disk + other.disk,
        )


class StartSeconds(NamedTuple):
    """How long jobs take to start."""

    with_model: float
    without_model: float


def format_table(
    stages: Mapping[str, Stage], rate: float, n_other_jobs: int = 0, start_seconds: float = 0.0
) -> str:
    """The estimate as text, at a rate in FLOP/s; stages without jobs are left out.

    n_other_jobs: Jobs that do not compute with a model.
    start_seconds: How long all jobs take to start. The other jobs take no more time than that.
    """
    header = (
        f"{'stage':<10}{'jobs':>7}{'layer-tokens':>14}{'PFLOP':>9}{'time':>10}{'naively':>10}"
        f"{'memory':>9}{'disk':>9}"
    )
    total = reduce(Stage.plus, stages.values(), Stage(jobs=n_other_jobs))
    lines = [header]
    for name, stage in {**stages, "all": total}.items():
        if not stage.jobs:
            continue
        seconds = stage.flops / rate
        naive_seconds = stage.naive_flops / rate
        if stage is total:
            lines.append(f"{'starts':<10}{n_other_jobs:>7,}{format_duration(start_seconds):>33}")
            seconds += start_seconds
            naive_seconds += start_seconds
        lines.append(
            f"{name:<10}{stage.jobs:>7,}{stage.layer_tokens:>14.3g}{stage.flops / 1e15:>9.3g}"
            f"{format_duration(seconds):>10}{format_duration(naive_seconds):>10}"
            f"{format_bytes(stage.memory):>9}{format_bytes(stage.disk):>9}"
        )
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 1.5 * 3600.0:
        return f"{seconds / 3600.0:.3g} h"
    if seconds >= 1.5 * 60.0:
        return f"{seconds / 60.0:.3g} min"
    if 0 < seconds < 0.01:
        return "< 0.01 s"
    return f"{seconds:.2g} s"


def format_bytes(n_bytes: float) -> str:
    """Bytes as kB, MB or GB; empty if there are none."""
    if not n_bytes:
        return ""
    if n_bytes >= 0.9995e9:
        return f"{n_bytes / 1e9:.3g} GB"
    if n_bytes >= 0.9995e6:
        return f"{n_bytes / 1e6:.3g} MB"
    return f"{n_bytes / 1e3:.3g} kB"


def parse_rate(text: str) -> float:
    """A rate in TFLOP/s from a user's input. Raises LaminaError if it is not a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise LaminaError(
            f"RATE={text}: no device computes at that rate. Write the TFLOP/s of one device, such "
            "as RATE=100."
        )
    return rate


def run_beside(seconds: float, longest_seconds: float, n_parallel: int) -> float:
    """How long jobs of `seconds` in total take, `n_parallel` at a time.

    Nothing runs in parallel with the longest job: most studies are a search and jobs that wait for
    it.
    """
    return longest_seconds + (seconds - longest_seconds) / n_parallel


def describe_remaining(
    n_jobs: int,
    n_computing: int,
    seconds: float,
    longest_seconds: float,
    start_seconds: StartSeconds,
    n_parallel: int,
) -> str:
    """The sentence about the jobs that are left to run.

    n_computing: How many jobs compute with a model.
    seconds: Time of these jobs in total, without their starts.
    longest_seconds: Time of the longest of them.
    n_parallel: Jobs at a time.
    """
    if not n_jobs:
        return "Nothing is left to run."
    seconds += min(n_jobs, n_computing) * start_seconds.with_model
    seconds += max(0, n_jobs - n_computing) * start_seconds.without_model
    left = format_duration(run_beside(seconds, longest_seconds, n_parallel))
    return (
        f"{n_jobs:,} jobs are left to run. They take about {left} with {n_parallel} at a time. "
        f"Each job takes {start_seconds.with_model:.1f} s to start, or "
        f"{start_seconds.without_model:.1f} s if it loads no model."
    )


def measure_start() -> StartSeconds:
    """Time the start of processes that import what jobs import."""
    modules = "snakemake.script, lamina_workflow.stages.job, lamina.store.parquet"
    model_modules = "lamina.engine.sweep, lamina.models.load, transformers.modeling_utils"
    return StartSeconds(
        with_model=_time_import(f"{modules}, {model_modules}"),
        without_model=_time_import(modules),
    )


def _time_import(modules: str) -> float:
    """Seconds that a process takes to import modules."""
    start_time = time.perf_counter()
    # In a session of its own: Ctrl-C then reaches only this process, which ends the other.
    command = [sys.executable, "-c", f"import {modules}"]
    subprocess.run(command, check=True, start_new_session=True)
    return time.perf_counter() - start_time


def count_cores(cores: str) -> int:
    """The cores that a run may use, from a number or `all`."""
    return int(cores) if cores.isdigit() else os.cpu_count() or 1


def measure_rate(results: Path, n_cores: int, always: bool = False) -> float | None:
    """FLOP/s of a sweep of a study's largest model, as `lamina_workflow.cost.work` counts it.

    A job uses its share of the `n_cores` of a run.

    None for a study without a calibration. None for a model above 2e9 parameters, unless `always`
    is set.
    """
    manifests: dict[str, dict[str, Any]] = {}
    for file in results.glob("models/*/manifest.json"):
        manifests[file.parent.name] = checksum.read_json(file)
    if not manifests:
        return None
    largest_model = max(manifests, key=lambda model: manifests[model]["parameters"])
    manifest = manifests[largest_model]
    calibration_files = list((results / "calibrations" / largest_model).glob("*.parquet"))
    is_too_large = manifest["parameters"] > MAX_MEASURED_PARAMETERS and not always
    if not calibration_files or is_too_large:
        return None

    import torch

    from lamina.data import calibrations
    from lamina.models.load import load_model

    torch.set_num_threads(resources.threads_of_job(n_cores))
    largest_file = sorted(calibration_files, key=os.path.getsize)[-1]
    samples = calibrations.read_calibration(largest_file).samples[:N_MEASURED_SAMPLES]
    return measure_sweep_rate(load_model(manifest), manifest, samples)


def measure_sweep_rate(model: Any, manifest: Mapping[str, Any], samples: Sequence[Any]) -> float:
    """FLOP/s of a sweep over as many samples as fit into MEASURED_SECONDS."""
    from lamina.engine import candidates, forking, sweep
    from lamina.engine.footprint import Shape
    from lamina.models.units import all_units
    from lamina_workflow.cost import work
    from lamina_workflow.cost.estimate import count_tokens

    units = all_units(manifest["n_layers"], "layer")
    n_measured = 0
    with sweep.open_session(model, samples) as session:
        removals, observations = candidates.plan_sweep(
            candidates.Candidate(), units, forking.find_parallel_layers(session.layers)
        )
        session.measure([0], removals, observations)  # starts threads and kernels
        start_time = time.perf_counter()
        n_next = min(len(samples), N_FIRST_SAMPLES)
        while n_measured < n_next:
            session.measure(range(n_measured, n_next), removals, observations)
            n_measured = n_next
            seconds = time.perf_counter() - start_time
            # Measure again, with as many samples as fit into the time.
            n_fitting = int(n_measured * MEASURED_SECONDS / seconds)
            n_next = min(len(samples), 2 * n_measured, n_fitting)

    tokens = count_tokens(samples[:n_measured])
    n_layers = manifest["n_layers"]
    layer_tokens = work.sweep_work(tokens, n_layers, 0, "removal", "layer").engine
    logits = work.sweep_logits(tokens, n_layers, 0, "removal", "layer")
    shape = Shape.of(model.config, model.dtype.itemsize)
    flops = work.layer_flops(manifest, tokens) * layer_tokens
    return (flops + work.logit_flops(shape, logits)) / seconds


def parse_arguments(arguments: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file", type=Path, help="what rule estimate_cost wrote, in the study's results folder"
    )
    parser.add_argument("--rate", help=f"sustained TFLOP/s of one device, by default {GPU_RATE:g}")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure this machine, also if it has a GPU"
    )
    parser.add_argument("--jobs", default="0", help="jobs that are left to run")
    parser.add_argument("--cores", default="all", help="cores that a run may use")
    return parser.parse_args(None if arguments is None else list(arguments))


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the plan."""
    options = parse_arguments(arguments)
    asked_rate = None if options.rate is None else parse_rate(options.rate)
    costs = checksum.read_json(options.file)
    n_cores = count_cores(options.cores)
    n_gpus = len(devices.list_devices(os.environ))
    measured_rate = None
    if asked_rate is None and (options.calibrate or not n_gpus):
        with saying_what_goes_on("Measuring how fast this machine is"):
            measured_rate = measure_rate(options.file.parent, n_cores, options.calibrate)

    if measured_rate:
        rate = measured_rate
        n_threads = resources.threads_of_job(n_cores)
        message = (
            "Times are for one job after another on this machine, each on "
            f"{n_threads} of its {os.cpu_count()} cores, at {rate / TERA:.2g} TFLOP/s, measured "
            "with the study's own model. For a GPU, use RATE=100 (lamina: --rate 100)."
        )
    else:
        rate = (asked_rate or GPU_RATE) * TERA
        message = (
            f"Times are for one device at {rate / TERA:g} TFLOP/s. "
            "CALIBRATE=1 (lamina: --calibrate) measures this machine instead."
        )
    stages = {name: Stage(**entry) for name, entry in costs["stages"].items()}
    seconds = sum(stage.flops for stage in stages.values()) / rate
    n_computing = sum(stage.jobs for stage in stages.values())
    n_jobs = int(options.jobs or 0)
    starts = measure_start()
    n_other = max(0, n_jobs - n_computing)
    start_seconds = n_computing * starts.with_model + n_other * starts.without_model
    print(format_table(stages, rate, n_other, start_seconds), "", message, sep="\n")
    print(
        "Memory: of the largest job, in addition to the process and the weights. Disk: at most, "
        "without downloaded models. Starts: number of jobs that load no model, and the time that "
        "all jobs take to start."
    )

    n_parallel = n_gpus or min(N_JOBS_ON_CPU, n_cores)
    longest_seconds = max((job["flops"] for job in costs["jobs"].values()), default=0.0) / rate
    print(describe_remaining(n_jobs, n_computing, seconds, longest_seconds, starts, n_parallel))
    for note in costs["notes"]:
        print(note)


if __name__ == "__main__":
    with report_errors():
        main()
