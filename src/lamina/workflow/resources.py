"""Threads, memory and time of jobs, from the model's manifest and the attempt."""

import json
import math
from pathlib import Path
from typing import Any

CLUSTER_THREADS = 4  # beside a GPU: one feeds it, the others tokenise and read weights

WEIGHTS_SHARE = 0.75  # of a device's memory

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def threads(cores: int | None, alone: bool = False) -> int:
    """Threads of a GPU stage.

    Parameters
    ----------
    cores
        Of the machine that jobs share with Snakemake; None where a cluster runs them, whose nodes' cores do not count.
    alone
        Whether the job has the machine to itself, as timing wants it. Otherwise two share the cores, which are what
        computes where there is no GPU.
    """
    if cores is None:
        return CLUSTER_THREADS
    return cores if alone else max(1, cores // 2)


def weights_gb(manifest: str | Path) -> float:
    """Gigabytes of a model's weights in the type it is loaded with.

    Raises
    ------
    FileNotFoundError
        If the model is not prepared yet; Snakemake asks again once it is.
    """
    model = json.loads(Path(manifest).read_text(encoding="utf-8"))
    size = _BYTES.get(model["dtype"])
    return float(model["parameters"] * size if size else model["weights_bytes"]) / 1e9


def devices(asked: int | str, manifest: str | Path, device_gb: float, here: int | None) -> int:
    """GPUs of a job: the number `asked` for, or for `auto` those that hold the weights.

    Parameters
    ----------
    device_gb
        Memory of one, of which weights have WEIGHTS_SHARE and passes the rest.
    here
        GPUs of the machine, if it is this one; None on a cluster.
    """
    count = math.ceil(weights_gb(manifest) / (WEIGHTS_SHARE * device_gb)) if asked == "auto" else int(asked)
    return max(1, count if here is None else min(count, here))


def memory(wildcards: Any, input: Any, attempt: int) -> int:
    """Megabytes of host memory: the libraries, the weights, and as much again where a stage changes them."""
    return round(attempt * (3000 + 2000 * weights_gb(input.manifest)))


def fit_memory(runs: int, automatic: bool, manifest: str | Path, attempt: int) -> int:
    """The same of a fit, which holds its maps until it is done: two of each run, and of `auto` two for each weight.

    Parameters
    ----------
    runs
        The most runs of removed layers that its plans have together.
    automatic
        Whether it tries the seven weights of `lamina.recovery.weighing.GRID`.
    """
    width = json.loads(Path(manifest).read_text(encoding="utf-8"))["hidden_size"]
    maps = 2 * (7 if automatic else 1) * runs * width**2 * _BYTES["float32"] / 1e6
    return round(attempt * (3000 + 2000 * weights_gb(manifest) + maps))


def drawn_minutes(orders: int, drawn: int, manifest: str | Path, attempt: int) -> int:
    """Time limit of passes over random cut models: `orders` of all units, each as long as a sweep, `drawn` by one."""
    sweeps = orders + drawn / json.loads(Path(manifest).read_text(encoding="utf-8"))["n_layers"]
    return round(attempt * (20 + (1 + sweeps) * (1 + 6 * weights_gb(manifest))))


def minutes(wildcards: Any, input: Any, attempt: int) -> int:
    """Time limit: loading and measuring grow with the weights, benchmarks with the files of their variants."""
    return minutes_of(len(input.get("variants", [])), input.manifest, attempt)


def minutes_of(variants: int, manifest: str | Path, attempt: int) -> int:
    """The same where a job reads the files of more variants than it measures."""
    return round(attempt * (20 + 6 * weights_gb(manifest) * (1 + variants / 4)))
