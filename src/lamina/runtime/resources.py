"""Threads and devices of jobs."""

import math
from pathlib import Path
from typing import Any

from lamina.models.manifest import weights_gb
from lamina.store import checksum as seal

CLUSTER_THREADS = 4  # beside a GPU: one thread feeds it, the others tokenise and read weights

WEIGHTS_SHARE = 0.75  # of a device's memory


def threads(cores: int | None, alone: bool = False) -> int:
    """Threads of a GPU stage.

    Parameters
    ----------
    cores
        Cores of the machine that jobs share with Snakemake; None if a cluster runs the jobs on its nodes.
    alone
        Whether the job has the machine to itself, as timing needs it. Otherwise two jobs share the cores, which compute
        if there is no GPU.
    """
    if cores is None:
        return CLUSTER_THREADS
    return cores if alone else max(1, cores // 2)


def devices(asked: int | str, manifest: str | Path, device_gb: float, here: int | None) -> int:
    """GPUs of a job: the number `asked` for, or for `auto` those that hold the weights.

    Parameters
    ----------
    device_gb
        Memory of one GPU. Weights get WEIGHTS_SHARE of it, and passes get the rest.
    here
        GPUs of the machine, if it is this one; None on a cluster.
    """
    count = math.ceil(weights_gb(_read(manifest)) / (WEIGHTS_SHARE * device_gb)) if asked == "auto" else int(asked)
    return max(1, count if here is None else min(count, here))


def _read(manifest: str | Path) -> dict[str, Any]:
    return seal.read_json(manifest)
