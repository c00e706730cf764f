"""How fast this machine works on a study's own model. `make plan CALIBRATE=1` measures it in about half a minute.

`python -m lamina.cost.pace RESULTS FILE` takes the study's largest model and its longest calibration, runs a
plain forward and then each stage on a part of it, and divides what `lamina.cost.work` counts by the time. On a
CPU, times are those of the processor, so that other processes do not count.
`lamina.cost.forecast` reads FILE.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina.errors import explained
from lamina.runtime import resources
from lamina.store import checksum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample

SAMPLES = 200  # of the calibration


def main() -> None:
    """Measure the pace and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="results folder of a study whose models are prepared")
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    manifests = [
        checksum.read_json(path) | {"name": path.parent.name}
        for path in (args.results / "models").glob("*/manifest.json")
    ]
    manifest = max(manifests, key=lambda model: model["parameters"])
    calibration = max((args.results / "calibrations" / manifest["name"]).glob("*.parquet"), key=os.path.getsize)
    start = _start(args.results / "models" / manifest["name"] / "manifest.json")
    import torch

    from lamina.data import calibrations
    from lamina.models.load import load_model, load_tokenizer

    torch.set_num_threads(resources.threads(os.cpu_count()))
    model, tokenizer = load_model(manifest), load_tokenizer(manifest)
    samples = calibrations.read(calibration).samples[:SAMPLES]
    rates_by_stage = dict(rates(model, tokenizer, manifest, samples))
    machine = f"{platform.node()} ({model.device.type}, {torch.get_num_threads()} threads a job)"
    pace = {"machine": machine, "start": start, "rate": rates_by_stage.pop("forward"), "stages": rates_by_stage}
    args.file.write_text(json.dumps(pace, indent=2) + "\n")


def _start(manifest: Path) -> float:
    """Processor seconds before a job computes: those of a process that imports and loads what a stage needs."""
    code = (
        "import sys; from lamina.data import calibrations; from lamina.engine import capture, sweep; "
        "from lamina.models.load import load_model; from lamina.store import checksum; "
        "load_model(checksum.read_json(sys.argv[1]))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    threads = {"OMP_NUM_THREADS": str(resources.threads(os.cpu_count()))}
    subprocess.run([sys.executable, "-c", code, str(manifest)], env=os.environ | threads, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rates(
    model: "PreTrainedModel", tokenizer: Any, manifest: dict[str, Any], samples: "Sequence[Sample]"
) -> Iterator[tuple[str, float]]:
    """FLOP/s of a plain `forward` and of each stage, as `lamina.cost.work` counts their work."""
    from lamina.cost import work
    from lamina.cost.estimate import counted
    from lamina.engine import sweep as engine
    from lamina.engine import taps
    from lamina.engine.batches import TOKENS
    from lamina.engine.capture import capture
    from lamina.evaluation.tasks import VariantLM
    from lamina.healing import lora, training
    from lamina.healing.lora import Lora
    from lamina.models.units import all_units
    from lamina.repair import check
    from lamina.repair.methods import ghost
    from lamina.repair.methods.ghost import Ghost
    from lamina.repair.protocol import Source

    tokens, depth = counted(samples), manifest["n_layers"]
    sequences, last = [sample.sequence() for sample in samples], (depth - 1, depth)
    units, healing = all_units(depth, "layer"), Lora(epochs=1)
    requests = [(("", ""), list(row.context), list(row.continuation)) for sample in samples for row in sample.rows]
    lm = VariantLM(model, tokenizer, manifest["name"])

    def fit() -> None:
        ((_, sums),) = ghost.collect(model, [Source(sequences)], [last], Ghost(), 0)
        fits = ghost.fit(sums, Ghost())
        check.measure(model, [Source(sequences)], {last: ghost.as_patch(fits.validated)}, 0)

    # The healed model lacks its last layer.
    stages: dict[str, tuple[Callable[[], Any], float]] = {
        "forward": (lambda: taps.run(model, sequences, [], lambda *_: None, TOKENS), tokens.stream * depth),
        "capture": (lambda: capture(model, sequences), tokens.stream * depth),
        "sweep": (
            lambda: engine.sweep(model, samples, units),
            work.sweep_work(tokens, depth, 0, "removal", "layer")[0],
        ),
        "repair": (fit, work.fit_work(Ghost(), "own", {"own": tokens}, depth, [1])),
        "heal": (
            lambda: lora.heal(model, {"units": [units[-1]]}, None, [training.Source(samples)], healing),
            work.TRAINING * tokens.stream * (depth - 1),
        ),
        "benchmark": (lambda: lm._loglikelihood_tokens(requests, disable_tqdm=True), tokens.rows * depth),
    }
    flops_each = work.layer_flops(manifest, tokens)
    stages["forward"][0]()
    for name, (run, layer_tokens) in stages.items():
        yield name, flops_each * layer_tokens / _seconds(run, model.device.type)


def _seconds(run: Callable[[], Any], device: str) -> float:
    """Seconds that a call takes by itself."""
    import torch

    if device == "cpu":
        began = time.process_time()
        run()
        return (time.process_time() - began) / torch.get_num_threads()
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    with explained():
        main()
