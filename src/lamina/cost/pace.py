"""How fast this machine is: how long a job's process takes to start, and the FLOP/s of a study's own model."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lamina.runtime import resources
from lamina.store import checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample

SAMPLES = 100  # of the calibration
LARGEST = 2e9  # parameters; a larger model is not loaded only to see how fast it is


class Start(NamedTuple):
    """Seconds before a job does its own work: one that computes with a model, and any other."""

    computing: float
    other: float


def start() -> Start:
    """Measure both, in processes that import what such jobs do."""
    took, scripts = [], "snakemake.script, lamina.stages.job, lamina.store.parquet"
    for modules in (f"{scripts}, lamina.engine.sweep, lamina.models.load, transformers.modeling_utils", scripts):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
        took.append(time.perf_counter() - began)
    return Start(*took)


def measure(results: Path, always: bool = False) -> float | None:
    """FLOP/s of a sweep of the largest model of a study, as `lamina.cost.work` counts its work.

    None for a study without a calibration; and, unless it is to be measured `always`, for a model above 2e9 parameters.
    """
    models = {path.parent.name: checksum.read_json(path) for path in results.glob("models/*/manifest.json")}
    name = max(models, key=lambda model: models[model]["parameters"], default="")
    drawn = sorted((results / "calibrations" / name).glob("*.parquet"), key=os.path.getsize)
    if not drawn or (models[name]["parameters"] > LARGEST and not always):
        return None
    import torch

    from lamina.data import calibrations
    from lamina.models.load import load_model

    torch.set_num_threads(resources.threads(os.cpu_count()))
    return rate(load_model(models[name]), models[name], calibrations.read(drawn[-1]).samples[:SAMPLES])


def rate(model: "PreTrainedModel", manifest: Mapping[str, Any], samples: "Sequence[Sample]") -> float:
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
