"""Threads and devices of jobs."""

import math
from pathlib import Path

from lamina.store.checksum import read_json

CLUSTER_THREADS = 4  # beside a GPU: one thread feeds it, the others tokenise and read weights
WEIGHTS_SHARE = 0.75  # of a device's memory; passes get the rest


def threads(cores: int | None, alone: bool = False) -> int:
    """Threads of a GPU stage on a machine of so many cores (None on a cluster), of which two jobs have half each.

    A job that is `alone`, as timing needs it, has all of them.
    """
    return CLUSTER_THREADS if cores is None else cores if alone else max(1, cores // 2)


def devices(asked: int | str, manifest: str | Path, device_gb: float, here: int | None) -> int:
    """GPUs of a job: the number `asked` for, or for `auto` as many of `device_gb` as hold the weights.

    `here` is the number of GPUs of this machine, or None on a cluster.
    """
    if asked == "auto":
        asked = math.ceil(read_json(manifest)["weights_bytes"] / 1e9 / (WEIGHTS_SHARE * device_gb))
    count = int(asked)
    return max(1, count if here is None else min(count, here))
