"""Memory, time and arithmetic of every stage on a random model of a real shape.

    python benchmarks/scale.py --preset 0.3B [--json] [--stages capture moments] [--repeats 1] [--pretended 16]

A stage runs in a process of its own, so that memory an earlier one has left behind is not counted as free. With
`--pretended` it runs on a GPU that is not there, of so many GiB (docs/models.md): memory is counted, and no time.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import REFERENCE, peak_of, random_documents
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import footprint, packing, sweep, taps
from lamina.engine import memory as room
from lamina.engine.batches import TOKENS
from lamina.engine.capture import capture_similarities
from lamina.engine.footprint import Shape
from lamina.engine.session import Pass
from lamina.engine.sources import Source
from lamina.evaluation import efficiency, tasks
from lamina.evaluation.tasks import VariantLM
from lamina.healing import batches, lora
from lamina.healing.batches import TrainingSource
from lamina.healing.lora import Lora
from lamina.models.load import default_device
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.models.workload import TRAINING_FACTOR
from lamina.options.benchmarks import Efficiency
from lamina.repairs import check
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina_workflow.cost import work
from lamina_workflow.cost.estimate import count_tokens
from lamina_workflow.cost.work import Tokens


@dataclass(frozen=True)
class Preset:
    """A shape and what is run on it: texts (number, length), documents (number, context), and the budget."""

    layers: int
    channels: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    texts: tuple[int, int]
    documents: tuple[int, tuple[int, int]]
    tokens: int


_8B = (32, 4096, 14336, 32, 8, 128256)
PRESETS = {
    "smoke": Preset(4, 64, 172, 4, 2, 512, (8, 32), (4, (20, 30)), 256),
    "0.3B": Preset(24, 1024, 2816, 16, 4, 32000, (5, 220), (2, (120, 220)), 4096),
    # As deep and wide with few tokens, for pretended devices.
    "24x1024": Preset(24, 1024, 2816, 16, 4, 32000, (5, 64), (1, (40, 60)), 1024),
    # Small models of large vocabularies: the shapes of SmolLM2-135M and of Gemma 3 270M.
    "vocabulary-49k": Preset(30, 576, 1536, 9, 3, 49152, (4, 128), (2, (60, 120)), 4096),
    "vocabulary-262k": Preset(18, 640, 2048, 4, 1, 262144, (4, 128), (2, (60, 120)), 4096),
    "1.1B": Preset(22, 2048, 5632, 32, 4, 32000, (4, 220), (2, (120, 220)), 4096),
    "8B": Preset(*_8B, (64, 512), (64, (120, 220)), 32768),
    "8B-long": Preset(*_8B, (16, 4096), (16, (3000, 3900)), 32768),
}


def build(preset: Preset) -> PreTrainedModel:
    """A random Llama in evaluation mode: in bfloat16 on a GPU, else in float32."""
    on = default_device()
    config = LlamaConfig(
        vocab_size=preset.vocabulary,
        hidden_size=preset.channels,
        intermediate_size=preset.inner,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.groups,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    # A CPU, which computes for a pretended GPU, takes forty times as long in bfloat16.
    if pretends():
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(on).eval()
    with on:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if on.type == "cuda" else torch.float32
        )
    return model.eval()


def pretends() -> bool:
    """Whether the GPU is not there."""
    return torch.cuda.is_available() and torch.cuda.get_device_name() == "pretended"


@dataclass(frozen=True)
class Work:
    """A stage: how it is run, over which tokens a plain forward stands beside it, and what is predicted of it.

    Attributes
    ----------
    flops : its arithmetic as `make plan` counts it; padding is left out.
    memory : bytes above process and model.
    """

    run: Callable[[], object]
    beside: list[tuple[int, ...]]
    flops: float
    memory: float


class Stages:
    """Every stage of one model, a method each."""

    def __init__(self, preset: Preset) -> None:
        self.preset, self.model, self.tokens = preset, build(preset), preset.tokens
        draw, (count, length) = random.Random(0), preset.texts
        lengths = [draw.randint(length * 3 // 4, length) for _ in range(count)]
        self.sequences = [
            tuple(draw.randrange(4, preset.vocabulary) for _ in range(size)) for size in lengths
        ]
        self.documents = random_documents(preset.documents[0], preset.documents[1], 4, (1, 4))
        self.shape = Shape.of(self.model.config, self.model.dtype.itemsize)
        self.units = all_units(preset.layers, "layer")
        layers = sum(weight.numel() for weight in layers_of(self.model).parameters())
        self.manifest = {"layer_parameters": layers / preset.layers, "hidden_size": preset.channels}
        self.manifest["vocabulary"] = preset.vocabulary

    def forward(self, sequences: Sequence[tuple[int, ...]]) -> None:
        """What every stage stands beside: the model's body over the same tokens, under the same budget."""
        taps.run_sequences(self.model, sequences, [], lambda *_: None, self.tokens)

    def flops(self, layer_tokens: float, tokens: Tokens, scored: float = 0.0) -> float:
        """Arithmetic of layers on lines of such lengths, and of the output embedding at `scored` positions."""
        head = (
            2 * self.manifest["hidden_size"] * self.manifest["vocabulary"]
        )  # the logits of one position
        return work.layer_flops(self.manifest, tokens) * layer_tokens + head * scored

    def capture(self) -> Work:
        """Similarities of all boundaries."""
        told = count_tokens(self.texts())
        return Work(
            lambda: capture_similarities(self.model, self.sequences, self.tokens),
            self.sequences,
            self.flops(told.stream * self.preset.layers, told),
            footprint.capture_bytes(self.shape, self.tokens, self.longest, told.samples),
        )

    def stream(self) -> Work:
        """A sweep of the current model alone."""
        return self._sweep(self.texts(), "stream")

    def removal_text(self) -> Work:
        """Every layer's removal, on texts."""
        return self._sweep(self.texts(self.preset.documents[0]), "removal")

    def removal_choices(self) -> Work:
        """Every layer's removal, on multiple-choice documents."""
        return self._sweep(self.documents, "removal")

    def _sweep(self, samples: list[Sample], pass_: Pass) -> Work:
        told, streams = count_tokens(samples), 1 + len(self.units) * (pass_ == "removal")
        layer_tokens, _ = work.sweep_work(told, self.preset.layers, 0, pass_, "layer")
        lines = [
            line
            for number, sample in enumerate(samples)
            for line in packing.pack_sample(number, sample)
        ]
        lengths = {len(line.tokens) for line in lines}
        most = max(len(packing.scored_positions(line)) for line in lines)
        return Work(
            lambda: sweep.sweep_units(self.model, samples, self.units, (), pass_, self.tokens),
            [line.tokens for line in lines],
            self.flops(layer_tokens, told, told.scored * streams),
            footprint.sweep_bytes(self.shape, self.tokens, lengths, len(lines), most, streams),
        )

    def moments(self) -> Work:
        """Sums for the patches of six runs of one layer, all in one pass."""
        told, runs = count_tokens(self.texts()), self._runs(6)

        def collect() -> None:
            for _ in ghost.collect(self.model, [Source(self.sequences)], runs, Ghost(), 0):
                pass

        return Work(
            collect,
            self.sequences,
            self.flops(told.stream * self.preset.layers, told),
            footprint.moment_bytes(self.shape, TOKENS, self.longest, told.samples, len(runs)),
        )

    def fit(self) -> Work:
        """The patch of one run from its sums, the second pass that measures its errors included."""
        told, (run,) = count_tokens(self.texts()), self._runs(1)

        def fit() -> None:
            ((_, sums),) = ghost.collect(self.model, [Source(self.sequences)], [run], Ghost(), 0)
            found = ghost.fit(sums, Ghost())
            del sums
            check.measure_patches(
                self.model, [Source(self.sequences)], {run: ghost.as_patch(found.validated)}, 0
            )

        return Work(
            fit,
            self.sequences,
            self.flops(
                work.fit_work(Ghost(), "own", {"own": told}, self.preset.layers, {1: 1}), told
            ),
            footprint.fit_peak_bytes(self.shape, TOKENS, self.longest, told.samples),
        )

    def _runs(self, number: int) -> list[tuple[int, int]]:
        """Runs of one layer, every other one, that end with the last."""
        last = self.preset.layers
        return [
            (start, start + 1) for start in range(max(last % 2 + 1, last + 1 - 2 * number), last, 2)
        ]

    def heal(self) -> Work:
        """One optimiser step against the unpruned model, and the validations before and after it."""
        samples, gone = self.texts(), range(self.preset.layers // 2, self.preset.layers * 3 // 4)
        options = Lora(objective="distill", rank=8, batch=4, epochs=1, max_steps=1)
        plan = {"units": [str(layer) for layer in gone]}
        (trained,), (held,) = batches.split_sources([TrainingSource(samples)], options.seed)
        (step,) = next(batches.plan_steps([trained], options)).sample_groups
        left, seen, validated = (
            self.preset.layers - len(gone),
            count_tokens(step),
            count_tokens(held.samples),
        )
        both = left + self.preset.layers
        layers = (
            seen.stream * (TRAINING_FACTOR * left + self.preset.layers)
            + 2 * validated.stream * both
        )
        scored = seen.stream * (TRAINING_FACTOR + 1) + 4 * validated.stream
        return Work(
            lambda: lora.heal(self.model, plan, None, [TrainingSource(samples)], options),
            [sample.sequence() for sample in step],
            self.flops(layers, seen, scored),
            footprint.healing_bytes(
                self.shape, left, self.longest, len(step), True, room.available_bytes(self.model)
            ),
        )

    def benchmark(self) -> Work:
        """lm-eval's log-likelihoods of a multiple-choice task."""
        lm = VariantLM(self.model, AutoTokenizer.from_pretrained(REFERENCE), "a random model")
        rows, told = (
            [row for sample in self.documents for row in sample.rows],
            count_tokens(self.documents),
        )
        requests = [(("", ""), list(row.context), list(row.continuation)) for row in rows]
        inputs = sorted({row.context + row.continuation[:-1] for row in rows})
        longest = max(map(len, inputs))
        lm.batch_size_per_gpu = tasks.count_lines(longest, self.preset.vocabulary)
        return Work(
            lambda: lm._loglikelihood_tokens(requests, disable_tqdm=True),
            inputs,
            self.flops(told.rows * self.preset.layers, told, told.rows),
            footprint.benchmark_bytes(
                self.shape, longest, min(len(inputs), lm.batch_size_per_gpu), len(inputs)
            ),
        )

    def efficiency(self) -> Work:
        """Latency of the model beside itself."""
        options = Efficiency(prompt=self.preset.texts[1], generate=4, repeats=2)
        runs, told = (
            2 + 2 * options.repeats,
            Tokens(1, options.prompt, options.prompt, options.prompt),
        )
        prefills, more = efficiency.PREFILLS, options.generate - 1
        layers = runs * (prefills * options.prompt + more) * self.preset.layers
        # The caches of this prompt and of the last one, each twice: a growing cache leaves a hole.
        caches = 4 * efficiency.kv_bytes_per_token(self.model)
        return Work(
            lambda: efficiency.measure_efficiency(self.model, [({}, self.model)], options),
            [tuple(range(options.prompt))] * runs * prefills,
            self.flops(layers, told, runs * (prefills + more)),
            options.batch * options.prompt * (self.shape.passing(options.prompt) + caches),
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(map(len, self.sequences))

    def texts(self, count: int | None = None) -> list[Sample]:
        """Texts as samples."""
        rows = [(Row(ids[:1], ids[1:], len(ids)),) for ids in self.sequences[:count]]
        return [Sample(number, "text", 0, row, str(number)) for number, row in enumerate(rows)]


LINE = "{stage:16} {peak_bytes:>13,} bytes, {share} of predicted"
TIMES = "; {ratio} passes, {of_counted} of {counted} counted; utilisation {utilisation} of {peak_gflops} GFLOP/s"
STAGES = "capture stream removal_text removal_choices moments fit heal benchmark efficiency".split()


def measure(preset: str, name: str, repeats: int) -> dict[str, Any]:
    """One stage's row. Times are seconds of the processor on a CPU, of the clock on a GPU."""
    stages = Stages(PRESETS[preset])
    work: Work = getattr(stages, name)()
    stages.forward([work.beside[0][:8]])
    facts: dict[str, Any] = {"preset": preset, "stage": name}
    if pretends():
        facts |= {"peak_bytes": peak_of(work.run), "predicted_bytes": round(work.memory)}
        return facts | {"share": round(facts["peak_bytes"] / work.memory, 3)}
    peaks: list[int] = []
    ratios, speeds = [], []
    told = count_tokens(
        [Sample(0, "text", 0, (Row(ids[:1], ids[1:], 1),), "") for ids in work.beside]
    )
    plain = stages.flops(told.stream * stages.preset.layers, told)
    for turn in range(repeats):
        before = seconds(lambda: stages.forward(work.beside))
        # The first run tells the memory, before any other could leave some behind.
        mine = seconds(work.run if turn else lambda: peaks.append(peak_of(work.run)))
        ratios.append(mine / before)
        speeds.append(work.flops / mine)
    ratio, most = statistics.median(ratios), peak_speed(stages.model.dtype)
    facts |= {"peak_bytes": peaks[0], "predicted_bytes": round(work.memory)}
    times = {
        "ratio": ratio,
        "lowest": min(ratios),
        "highest": max(ratios),
        "counted": work.flops / plain,
    }
    times |= {
        "of_counted": times["counted"] / ratio,
        "utilisation": statistics.median(speeds) / most,
    }
    shares = {"share": peaks[0] / work.memory, **times}
    return {
        **facts,
        **{key: round(value, 3) for key, value in shares.items()},
        "peak_gflops": round(most / 1e9),
    }


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes; on one thread, without what watching its memory takes on another."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.process_time
    clock = time.perf_counter if torch.cuda.is_available() else clock
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


def peak_speed(dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product in a dtype, the fastest of five: what utilisation is a share of."""
    size = 8192 if torch.cuda.is_available() else 1536
    a = torch.randn(size, size, dtype=dtype, device=default_device())
    return 2 * size**3 / min(seconds(lambda: a @ a) for _ in range(5))


def _devices(gibibytes: int | None) -> AbstractContextManager[object]:
    """A pretended GPU of so much memory, or what there is."""
    if gibibytes is None:
        return nullcontext()
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.device.placed import GIB
    from tests.device.pretended import pretend_devices

    return pretend_devices(gibibytes * GIB)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--preset", choices=PRESETS, default="smoke")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--pretended", type=int, metavar="GIB", help="on a GPU that is not there, of so many GiB"
    )
    parser.add_argument(
        "--here", action="store_true", help="in this process: what --json does for each stage"
    )
    args = parser.parse_args()
    if args.here:
        torch.set_num_threads(args.threads)
        with _devices(args.pretended):
            for stage in args.stages:
                print(json.dumps(measure(args.preset, stage, args.repeats)))
        sys.exit()
    # Large tensors go back to the system when they are freed, so that what is resident is what is in use.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    told = [
        "--preset",
        args.preset,
        "--repeats",
        str(args.repeats),
        "--threads",
        str(args.threads),
        "--here",
    ]
    told += [] if args.pretended is None else ["--pretended", str(args.pretended)]
    rows = []
    for stage in args.stages:
        command = [sys.executable, __file__, *told, "--stages", stage]
        found = subprocess.run(
            command, stdout=subprocess.PIPE, env=environment, text=True, check=True
        )
        rows.append(json.loads(found.stdout))
        if not args.json:
            print(
                LINE.format(**rows[-1]) + (TIMES.format(**rows[-1]) if "ratio" in rows[-1] else ""),
                flush=True,
            )
    if args.json:
        print(json.dumps({"stages": rows}))
