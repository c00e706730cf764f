"""Threads and devices of jobs."""

import math
from pathlib import Path

from lamina.store.checksum import read_json

CLUSTER_THREADS = 4  # one thread feeds the GPU, the others tokenise and read weights
WEIGHTS_SHARE = 0.75  # of a device's memory; passes get the rest


def threads_of_job(cores: int | None, alone: bool = False) -> int:
    """Threads of a GPU stage, on a machine with `cores` cores or on a cluster (None).

    Two jobs run at a time and get half of the cores each. A job that is `alone`, as timing needs,
    gets all of them.
    """
    if cores is None:
        return CLUSTER_THREADS
    return cores if alone else max(1, cores // 2)


def gpus_of_job(
    requested: int | str, manifest: str | Path, device_gb: float, n_available: int | None
) -> int:
    """GPUs of a job: the number `requested`, or for `auto` as many as hold the weights.

    manifest: The model's manifest, with the size of its weights.
    device_gb: Gigabytes of one GPU.
    n_available: The number of GPUs of this machine, or None on a cluster.
    """
    if requested == "auto":
        weights_gb = read_json(manifest)["weights_bytes"] / 1e9
        requested = math.ceil(weights_gb / (WEIGHTS_SHARE * device_gb))
    n_devices = int(requested)
    if n_available is not None:
        n_devices = min(n_devices, n_available)
    return max(1, n_devices)
