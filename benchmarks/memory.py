"""Peak memory of every stage against what `make plan` and `mem_mb` say, on random models of hard shapes.

    python benchmarks/memory.py [--shape gemma wide] [--stages capture search] [--questions 6] [--texts 4] [--json]

`gemma` has a large vocabulary (18 layers x 640, 262,144 tokens), `wide` wide streams (3 layers x 4,096), and `slim` a
large vocabulary and little else. The search is the recommended one: sets of several sizes, bare and with a repair,
judged by questions and by texts.

Each stage runs in a process of its own. Its peak is the kernel's: the most memory that was resident (VmHWM) from the
loaded model to the end. So memory that was freed and not given back counts as well.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import REFERENCE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Row, Sample, build_calibration
from lamina.engine.candidates import Candidate
from lamina.engine.capture import capture_similarities
from lamina.engine.footprint import Shape
from lamina.evaluation import perplexity, tasks
from lamina.evaluation.together import Together
from lamina.healing import lora
from lamina.healing.batches import TrainingSource
from lamina.models.materialise import materialise
from lamina.models.sizes import count_sizes
from lamina.models.units import all_units
from lamina.repairs import fitting
from lamina.selection import judging, removals
from lamina.selection.sets import SearchRequest
from lamina.store import parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.estimate import Works, count_tokens
from lamina_workflow.stages import benchmark, heal, prune, repair, sweep
from lamina_workflow.stages import capture as captures
from lamina_workflow.stages.job import OnModel, Wildcards
from lamina_workflow.study import sweeps

MODEL = "random"
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@dataclass(frozen=True)
class Preset:
    """A model's shape, as its config.json has it, and the sizes of the plans."""

    config: Mapping[str, Any]
    sizes: tuple[int, ...]


GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 18,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
SLIM = {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
PRESETS = {
    "gemma": Preset(GEMMA, (3, 4)),
    # The same vocabulary on next to nothing, for `make test`.
    "slim": Preset(GEMMA | SLIM, (2, 3)),
    "wide": Preset(
        {
            "model_type": "llama",
            "num_hidden_layers": 3,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
        },
        (1,),
    ),
}


class Study:
    """What a run of the recommended strategy reads: a random model, questions, texts and the configuration."""

    def __init__(self, preset: Preset, questions: int, texts: int, folder: Path) -> None:
        self.preset, self.folder = preset, folder
        settings = AutoConfig.for_model(**preset.config, **NO_TOKENS)
        source = folder / "models" / MODEL
        settings.save_pretrained(source)
        parquet.write_tensors(source / "model.safetensors", {}, {})
        (source / "tokenizer.json").write_text("{}")
        (folder / "text.txt").write_text("A text.\n\nAnother text.\n")
        draw = random.Random(0)

        def ids(count: int) -> tuple[int, ...]:
            return tuple(draw.randrange(4, settings.vocab_size) for _ in range(count))

        self.questions: list[Sample] = []
        for number in range(questions):
            context = ids(draw.randint(12, 24))
            rows = tuple(Row(context, ids(draw.randint(12, 28)), 4) for _ in range(2))
            self.questions.append(Sample(number, "choices", 0, rows, f"question {number}"))
        self.texts: list[Sample] = []
        for number in range(texts):
            text = ids(128)
            row = Row(text[:1], text[1:], len(text))
            self.texts.append(Sample(number, "text", 0, (row,), f"text {number}"))
        self.config = self._configuration()
        self.manifest = self._manifest(settings)

    def _configuration(self) -> Configuration:
        raw = {
            "seed": 0,
            "models": {MODEL: {"source": f"models/{MODEL}", "dtype": "float32"}},
            "calibrations": {
                "piqa": {"task": "piqa", "limit": len(self.questions)},
                "c4": {
                    "hub": "allenai/c4",
                    "name": "en",
                    "revision": "main",
                    "documents": f"0:{len(self.texts)}",
                    "length": 128,
                },
            },
            "selectors": {
                "portfolio": {
                    "strategy": "portfolio",
                    "repairs": ["ghost"],
                    "also": {"c4": 1},
                    "members": ["block", "cosine", "perplexity"],
                    "exchanges": 1,
                    "protect": [0],
                }
            },
            "repairs": {"ghost": {"method": "ghost", "data": {"own": 1, "c4": 0.1}}},
            "healings": {"lora": {"method": "lora", "objective": "distill", "max_steps": 2}},
            "benchmarks": {
                "tasks": {"piqa": {}},
                "perplexity": {"text": {"text": "text.txt", "window": 128}},
            },
            "studies": {
                "maps": {"models": [MODEL], "calibrations": ["piqa"], "metrics": ["perplexity"]},
                "prune": {
                    "models": [MODEL],
                    "calibrations": ["piqa"],
                    "selectors": ["portfolio"],
                    "removed": list(self.preset.sizes),
                    "repairs": ["none", "ghost"],
                    "healings": ["none", "lora"],
                    "tasks": "all",
                },
            },
        }
        return load_configuration(raw, self.folder)

    def _manifest(self, settings: Any) -> dict[str, Any]:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings)
        parameters = model.num_parameters()
        return {
            "n_layers": settings.num_hidden_layers,
            "hidden_size": settings.hidden_size,
            "vocab_size": settings.vocab_size,
            "dtype": "float32",
            "parameters": parameters,
            "weights_bytes": 4 * parameters,
            "layer_parameters": count_sizes(model, 4).layer_parameters,
            "attention_share": {"parameters": 0.3, "latency": 0.3},
            "path": str(self.folder / "models" / MODEL),
            "trust_remote_code": False,
        }

    @property
    def calibrations(self) -> dict[str, CalibrationSamples]:
        """The questions, which choose, and the texts, which judge with them."""
        drawn = {"piqa": self.questions, "c4": self.texts}
        vocabulary = self.manifest["vocab_size"]
        return {name: build_calibration(samples, vocabulary) for name, samples in drawn.items()}

    @property
    def plans(self) -> list[dict[str, Any]]:
        """Plans of every size whose layers are no neighbours: each of them is a run of its own."""
        last = self.manifest["n_layers"]
        keys = {"model": MODEL, "calibration": "piqa", "selector": "portfolio"}
        return [
            keys | {"removed": size, "units": [str(last - 1 - 2 * n) for n in range(size)]}
            for size in self.preset.sizes
        ]

    def build_model(self) -> PreTrainedModel:
        """The random model, in float32."""
        torch.manual_seed(0)
        settings = AutoConfig.for_model(**self.preset.config, **NO_TOKENS)
        return AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()


@dataclass(frozen=True)
class Stage:
    """A stage: its work, the job that `mem_mb` is asked of, and the files that name its work in `make plan`."""

    work: Callable[[], object]
    job: type[OnModel]
    wildcards: Mapping[str, str]
    outputs: tuple[str, ...]


class Stages:
    """The work of every stage, one method each, as its script calls the library."""

    def __init__(self, study: Study, model: PreTrainedModel) -> None:
        self.study, self.model, self.tokens = study, model, int(study.config.sweep.tokens)

    def capture(self) -> object:
        """Similarities of all boundaries."""
        return capture_similarities(
            self.model, [text.sequence() for text in self.study.texts], self.tokens
        )

    def sweep(self) -> object:
        """The removal of every layer, on texts, with the distances of the outputs."""
        units = all_units(self.study.manifest["n_layers"], "layer")
        calibrations = {"c4": self.study.calibrations["c4"]}
        return removals.removal_rows(self.model, calibrations, units, token_budget=self.tokens)

    def search(self) -> object:
        """The recommended strategy, with one repair and with texts among the judges."""
        wildcards = Wildcards(model=MODEL, calibration="piqa", selector="portfolio")
        job = prune.SearchPlans.of(self.study.config, wildcards)
        return judging.search_plans(
            SearchRequest(
                model=self.model,
                calibrations=self.study.calibrations,
                selector=job.selector,
                sizes=job.sizes,
                keys=job.keys,
                score=job.score,
                token_budget=job.tokens,
                loops=job.repairs,
                manifest=self.study.manifest,
                log=self.study.folder / "portfolio.log",
            )
        )

    def fit(self) -> object:
        """The repair of the plans of all sizes."""
        options = self.study.config.repairs["ghost"]
        depth = self.study.manifest["n_layers"]
        request = fitting.sort_plans(self.study.plans, depth, options)
        weights = [("piqa", 1.0), ("c4", 0.1)]
        groups = fitting.fit_plans(self.model, request, self.study.calibrations, weights, 0)
        return fitting.record_fits(request, groups, "ghost")

    def heal(self) -> object:
        """Two steps of low-rank training against the unpruned model."""
        options = self.study.config.healings["lora"]
        source = TrainingSource(self.study.texts)
        return lora.heal(self.model, self.study.plans[0], None, [source], options)

    def benchmark(self) -> object:
        """Answers of the base model and a plan in one pass, and of a healed plan alone."""
        plan = self.study.plans[0]
        rows = [
            (row.context, row.continuation) for each in self.study.questions for row in each.rows
        ]
        together = Together(self.model, self._candidates(plan))
        found = together.likelihoods("base", rows, "benchmark")
        tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
        alone = tasks.VariantLM(materialise(self.model, plan), tokenizer, "a random model")
        longest = max(len(context) + len(continuation) for context, continuation in rows)
        alone.batch_size_per_gpu = tasks.count_lines(longest, self.study.manifest["vocab_size"])
        requests = [(("", ""), list(context), list(answer)) for context, answer in rows]
        return found, alone._loglikelihood_tokens(requests, disable_tqdm=True)

    def perplexity(self) -> object:
        """Texts on the base model and a plan in one pass, and on a healed plan alone."""
        plan, texts = self.study.plans[0], self.study.texts
        cut = [perplexity.Window(text.sequence(), 1, n) for n, text in enumerate(texts)]
        together = Together(self.model, self._candidates(plan))
        found = perplexity.document_nll(self.model, cut, len(cut), "base", together)
        alone = materialise(self.model, plan)
        return found, perplexity.document_nll(alone, cut, len(cut), "alone")

    def _candidates(self, plan: Mapping[str, Any]) -> dict[str, Candidate]:
        return {"base": Candidate(), "pruned": Candidate(frozenset(plan["units"]))}


JOBS: dict[str, tuple[type[OnModel], str, dict[str, str]]] = {
    "capture": (captures.CaptureActivations, "capture", {}),
    "sweep": (sweep.SweepUnits, "sweep", {"removed": "0", "block": "0"}),
    "search": (prune.SearchPlans, "search", {"selector": "portfolio"}),
    "fit": (repair.FitPatch, "repair", {"selector": "portfolio", "repair": "ghost"}),
    "heal": (
        heal.HealVariant,
        "heal",
        {"selector": "portfolio", "repair": "none", "healing": "lora"},
    ),
    "benchmark": (benchmark.BenchmarkTask, "benchmark", {"task": "piqa", "block": "0"}),
    "perplexity": (benchmark.BenchmarkPerplexity, "benchmark", {"task": "text", "block": "0"}),
}
"""By stage: its job, its name in `make plan`, and its wildcards beside model and calibration."""


def predicted(study: Study, stage: str) -> tuple[float, int]:
    """Bytes above process and weights that `make plan` prints for a stage, and the bytes of `mem_mb`."""
    job, planned, named = JOBS[stage]
    questions, texts = count_tokens(study.questions), count_tokens(study.texts)
    settings = AutoConfig.for_model(**study.preset.config)
    works = Works(
        study.config,
        {MODEL: study.manifest},
        {MODEL: Shape.of(settings, 4)},
        # The benchmark's sweep runs over texts, which need more than the questions.
        {
            (MODEL, "piqa"): texts if stage in ("capture", "sweep") else questions,
            (MODEL, "c4"): texts,
        },
        {(MODEL, "piqa"): questions, (MODEL, "text"): texts},
    )
    task = named.get("task", "")
    memory = max(
        cost.memory
        for name, outputs, cost in works
        if name == planned and any(task in output for output in outputs)
    )
    keys = {"model": MODEL, "calibration": "piqa", "removed": str(study.preset.sizes[0])}
    if stage == "sweep":
        keys["selector"] = next(iter(sweeps.list_sweeps(study.config)))[2]
    place = Wildcards({**keys, **named})
    mem_mb = job.of(study.config, place).memory(study.manifest, 1)
    return memory, mem_mb * 10**6


def resident(name: str) -> int:
    """Bytes that this process holds now (VmRSS) or held at most (VmHWM), as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def measure(shape: str, stage: str, questions: int, texts: int) -> dict[str, Any]:
    """The row of one stage, from a run in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, chdir(name):
        study = Study(PRESETS[shape], questions, texts, Path(name))
        memory, mem_mb = predicted(study, stage)
        stages = Stages(study, study.build_model())
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = resident("VmRSS")
        getattr(stages, stage)()
        peak = resident("VmHWM")
    return {
        "shape": shape,
        "stage": stage,
        "loaded_bytes": before,
        "peak_bytes": peak,
        "planned_bytes": before + round(memory),
        "mem_bytes": mem_mb,
        "of_plan": round(peak / (before + memory), 2),
        "of_mem_mb": round(peak / mem_mb, 2),
    }


HEAD = "shape    stage        loaded      peak   by make plan   of it   by mem_mb   of it"
LINE = (
    "{shape:8} {stage:10} {loaded:>6.2f} GB {peak:>6.2f} GB {planned:>11.2f} GB {of_plan:>7}"
    " {mem:>8.2f} GB {of_mem_mb:>7}"
)


def printed(row: Mapping[str, Any]) -> str:
    """A row as text."""
    names = ("loaded", "peak", "planned", "mem")
    sizes = {name: row[f"{name}_bytes"] / 1e9 for name in names}
    return LINE.format(**{**row, **sizes})


def main() -> None:
    """Measure stages one after the other and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=PRESETS, default=["gemma", "wide"])
    parser.add_argument("--stages", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    args = parser.parse_args()
    told = ["--questions", str(args.questions), "--texts", str(args.texts), "--here"]
    rows = []
    if not args.here and not args.json:
        print(HEAD, flush=True)
    for shape in args.shape:
        for stage in args.stages:
            if args.here:
                print(json.dumps(measure(shape, stage, args.questions, args.texts)))
                continue
            command = [sys.executable, __file__, *told, "--shape", shape, "--stages", stage]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, env=os.environ, text=True, check=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            if not args.json:
                print(printed(rows[-1]), flush=True)
    if args.json and not args.here:
        print(json.dumps({"stages": rows}))


if __name__ == "__main__":
    main()
