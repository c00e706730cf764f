"""The cost of a study before it runs: jobs, layer-tokens and memory per stage, by the engine and by the naive way.

The output embedding, loading and starting are left out. `lamina.cost.forecast` prints it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer

from lamina.config.benchmarks import Perplexity
from lamina.config.configuration import Configuration
from lamina.cost.forecast import STAGES, Stage
from lamina.cost.memory import is_candidate, peaks
from lamina.cost.work import (
    TRAINING,
    Tokens,
    alone,
    benchmark_work,
    fit_work,
    layer_flops,
    sweep_work,
    timing_work,
)
from lamina.data import calibrations as samples_of
from lamina.data import documents
from lamina.data.calibrations import Sample
from lamina.data.text import encode
from lamina.engine import packing
from lamina.engine.candidates import Candidate, grow
from lamina.engine.footprint import Shape
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.selection.trials import Trials, run
from lamina.store import checksum, parquet
from lamina.study import paths, sweeps
from lamina.study import requests as studies
from lamina.study.sweeps import SweepSelector
from lamina.study.variant import Variant

SEARCHED = 100  # samples of a search's rehearsal, which stand for those of a calibration


def estimate(config: Configuration, manifests: list[str], drawn: list[str], tested: list[str]) -> dict[str, Any]:
    """What results/cost.json says: the cost of each `stage`, the FLOP of the job behind each output, and `notes`.

    Parameters
    ----------
    manifests, drawn, tested
        Files of the models, of their calibrations, and of the benchmark tasks.
    """
    models = {Path(file).parent.name: checksum.read_json(file) for file in manifests}
    calibrations = {(path.parent.name, path.stem): counted(samples_of.read(path).samples) for path in map(Path, drawn)}
    tasks = {}
    for model, manifest in models.items():
        known = {calibration: tokens for (name, calibration), tokens in calibrations.items() if name == model}
        for path in map(Path, tested if known else []):
            tasks[model, path.stem] = _of_task(path, config, known)
        for text, entry in config.benchmarks.perplexity.items():
            tasks[model, text] = _of_text(entry, manifest)
    jobs = list(works(config, models, calibrations, tasks))
    sums, shapes = stages(jobs), {model: _shape(manifest) for model, manifest in models.items()}
    for stage, memory in peaks(config, shapes, calibrations, tasks).items():
        sums[stage].memory = memory
    early = ", ".join(sorted(name for name, entry in config.selectors.items() if entry.budget != "full"))
    note = f"Selectors {early} let units leave early: their sweeps are counted in full, as the most."
    return {
        "stages": {name: asdict(stage) for name, stage in sums.items()},
        "jobs": {output: work.flops for work in jobs for output in work.outputs},
        "notes": [note] if early else [],
    }


def counted(samples: Sequence[Sample]) -> Tokens:
    """Tokens of all samples together."""
    lines = [line for number, sample in enumerate(samples) for line in packing.pack(number, sample)]
    inputs = [{row.context + row.continuation[:-1] for row in sample.rows} for sample in samples]
    return Tokens(
        samples=len(samples),
        packed=sum(len(line.tokens) for line in lines),
        rows=sum(len(tokens) for distinct in inputs for tokens in distinct),
        stream=sum(len(sample.sequence()) for sample in samples),
        longest=max((len(line.tokens) for line in lines), default=0),
        scored=sum(len(packing.scored_positions(line)) for line in lines),
    )


def _of_task(tested: Path, config: Configuration, known: Mapping[str, Tokens]) -> Tokens:
    """Tokens of a benchmark task: its samples are as long as those of the calibrations of it, or of all.

    Questions of the user's own have the same name as calibration and as benchmark.
    """
    task = tested.stem
    same = [c for c, entry in config.calibrations.items() if c in known and (entry.drawn == [task] or c == task)]
    own = known[same[0]] if same else reduce(Tokens.plus, known.values())
    return own.scaled(parquet.read(tested).num_rows)


def _of_text(entry: Perplexity, manifest: Mapping[str, Any]) -> Tokens:
    """Tokens of a perplexity text, every window counted whole."""
    tokenizer = AutoTokenizer.from_pretrained(manifest["path"], trust_remote_code=manifest["trust_remote_code"])
    path = documents.corpus_file(entry.text, entry.split, Path.cwd())
    lengths = [len(encode(tokenizer, text)) for text in documents.read_documents(path, entry.documents)]
    read = round(sum(lengths) * entry.window / (entry.stride or entry.window))
    return Tokens(len(lengths), read, read, read, min(max(lengths), entry.window), read)


def _shape(manifest: Mapping[str, Any]) -> Shape:
    """The sizes that decide the memory of a model's passes."""
    config = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    dtype = config.dtype if manifest["dtype"] == "auto" else getattr(torch, manifest["dtype"])
    return Shape.of(config, (dtype or torch.float32).itemsize)


@dataclass(frozen=True)
class Counted:
    """The work of jobs of one stage that cost the same, each of which writes one of `outputs`.

    Layer-tokens are those of all of them together, by the engine and the naive way, and cost `flops_each`.
    """

    stage: str
    outputs: list[str]
    layer_tokens: float = 0.0
    naive: float = 0.0
    flops_each: float = 0.0

    @property
    def flops(self) -> float:
        """Of one of the jobs."""
        return self.layer_tokens * self.flops_each / len(self.outputs)


def stages(works: Iterable[Counted]) -> dict[str, Stage]:
    """The cost of every stage."""
    sums = {name: Stage() for name in STAGES}
    for work in works:
        sums[work.stage].jobs += len(work.outputs)
        sums[work.stage].add(work.layer_tokens, work.naive, work.flops_each)
    return sums


def works(
    config: Configuration,
    models: Mapping[str, Mapping[str, Any]],
    calibrations: Mapping[tuple[str, str], Tokens],
    tasks: Mapping[tuple[str, str], Tokens],
) -> Iterator[Counted]:
    """The work of every job that computes: manifests by model, tokens by (model, calibration) and by (model, task)."""
    depth = {name: manifest["n_layers"] for name, manifest in models.items()}

    def flops(model: str, tokens: Tokens) -> float:
        return layer_flops(models[model], tokens)

    for model, calibration in studies.captures(config):
        tokens = calibrations[model, calibration]
        work = float(tokens.stream * depth[model])
        yield Counted("capture", [paths.activations(model, calibration)], work, work, flops(model, tokens))
    for model, calibration, selector, removed in sweeps.sweeps(config, carried=True):
        tokens = calibrations[model, calibration]
        work, naive = _sweep(config, calibrations, depth[model], (model, calibration, selector, removed))
        blocks = range(sweeps.sweep_blocks(config, model, selector))
        written = [paths.sweep_block(f"{model}/{calibration}/{selector}", removed, block) for block in blocks]
        # Each job more carries the model before the removals once more.
        work += (len(blocks) - 1) * tokens.packed * (depth[model] - removed)
        yield Counted("sweep", written, work, naive, flops(model, tokens))
    for (model, calibration, selector), sizes in studies.searches(config).items():
        entry: Any = config.selectors[selector]
        tokens, written = calibrations[model, calibration], [paths.search(f"{model}/{calibration}/{selector}")]
        yield Counted("search", written, *search_work(tokens, depth[model], sizes, entry), flops(model, tokens))
    variants = studies.variants(config)
    for model, own, selector, repair in sorted(
        {(v.model, v.calibration, v.selector, v.repair) for v in variants if v.repair != "none"}
    ):
        read = {name: calibrations[model, name] for name in studies.fitted_on(config, own, repair)}
        removed_sizes = studies.sizes(config, model, own, selector, repair)
        work = fit_work(config.repairs[repair], own, read, depth[model], removed_sizes)
        written = [paths.patch(f"{model}/{own}/{selector}", repair)]
        yield Counted("repair", written, work, work, flops(model, calibrations[model, own]))
    for variant in (v for v in variants if v.healing != "none"):
        key = f"{variant.model}/{variant.calibration}/{variant.selector}"
        written = [paths.training(paths.adapter(key, variant.removed, variant.repair, variant.healing))]
        work, each = _healing(config, models, calibrations, variant)
        yield Counted("heal", written, work, work, each)
    for model, calibration, task, block in studies.benchmark_blocks(config):
        tokens = tasks[model, task]
        lacking: dict[bool, list[int]] = {True: [], False: []}
        for variant in studies.block_variants(config, model, calibration, task, block):
            lacking[is_candidate(config, variant)].append(variant.removed)
        work, naive = benchmark_work(tokens, depth[model], lacking[True], lacking[False])
        written = [paths.benchmark(model, calibration, task, block)]
        yield Counted("benchmark", written, work, naive, flops(model, tokens))
    for model, calibration, task, block in studies.generation_blocks(config):
        tokens, asked = tasks[model, task], config.benchmarks.tasks[task].generate
        left = [depth[model] - v.removed for v in studies.block_variants(config, model, calibration, task, block)]
        # The likeliest answer and the samples, as long as the right ones.
        work = float((1 + asked.samples if asked else 0) * tokens.stream * sum(left))
        yield Counted(
            "benchmark", [paths.generation(model, calibration, task, block)], work, work, flops(model, tokens)
        )
    for model in config.models:
        timing, structures = config.benchmarks.efficiency, studies.structures(config, model)
        if timing and structures:
            length = timing.batch * timing.prompt
            prompts = Tokens(timing.batch, length, timing.batch, length)
            work = timing_work(prompts, timing, depth[model], structures)
            yield Counted("benchmark", [paths.efficiency(model)], work, work, flops(model, prompts))


def _sweep(
    config: Configuration,
    calibrations: Mapping[tuple[str, str], Tokens],
    n_layers: int,
    place: tuple[str, str, str, int],
) -> tuple[float, float]:
    """Layer-tokens of a sweep with all its blocks, by the engine and the naive way."""
    model, calibration, selector, removed = place
    tokens = calibrations[model, calibration]
    swept = SweepSelector.parse(selector)
    pass_, kind, _ = swept.settings(config)
    work, naive = sweep_work(tokens, n_layers, removed, pass_, kind, list(swept.others(config)))
    if (repair := swept.repair(config)) != "none":
        # One pass for the Gram matrices of the patches, over what is scored as well.
        seen = {calibration, *studies.fitted_on(config, swept.planned_on(calibration), repair)}
        fitting = float(sum(calibrations[model, name].stream for name in seen) * n_layers)
        work, naive = work + fitting, naive + fitting
    return work, naive


def _healing(
    config: Configuration,
    models: Mapping[str, Mapping[str, Any]],
    calibrations: Mapping[tuple[str, str], Tokens],
    variant: Variant,
) -> tuple[float, float]:
    """Layer-tokens of healing a variant, and the arithmetic of each, a mean over the calibrations it is trained on."""
    manifest = models[variant.model]
    settings: Any = config.healings[variant.healing]  # every method trains for epochs
    weights = settings.weights(variant.calibration)
    drawn = {name: weight / max(weights.values()) for name, weight in weights.items()}
    trained = {name: calibrations[variant.model, name] for name in weights}
    steps = settings.epochs * -(-sum(math.ceil(drawn[n] * trained[n].samples) for n in trained) // settings.batch)
    share = min(1.0, (settings.max_steps or steps) / steps) * settings.epochs
    passes = TRAINING * (manifest["n_layers"] - variant.removed)
    # The teacher's forward pass.
    passes += manifest["n_layers"] if settings.objective != "lm" else 0
    work = {name: passes * share * drawn[name] * tokens.stream for name, tokens in trained.items()}
    arithmetic = sum(work[name] * layer_flops(manifest, tokens) for name, tokens in trained.items())
    return sum(work.values()), arithmetic / sum(work.values())


def search_work(tokens: Tokens, n_layers: int, sizes: Sequence[int], options: Any) -> tuple[float, float]:
    """Layer-tokens of a search for sets of these sizes and their measurement at the end, by the engine and naively.

    The search runs as in a job, but nothing is measured: the engine's tree counts the models that it asks for.
    `options` are those of the selector. Units lose random amounts, so that the sets that a search keeps have units in
    common, as with true losses.
    """
    draw, work = np.random.default_rng(0), np.zeros(2)
    lost = defaultdict[str, float](draw.random)

    class Rehearsed:
        def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
            shown = len(list(numbers))
            layers = [grow(candidates, [], n_layers, True).layers, alone(candidates, n_layers)]
            work[:] += np.array(layers) * shown / SEARCHED
            # What units lose together is more or less than the sum.
            sums = [sum(lost[unit] for unit in sorted(each.removed)) for each in candidates]
            return (np.array(sums) * draw.uniform(0.5, 1.5, len(sums)))[:, None].repeat(shown, axis=1)

    free = options.free(n_layers)
    units = [unit for unit in all_units(n_layers, options.units) if free[parse(unit)[0]]]
    rehearse = getattr(load(f"{options.PACKAGE}.{options.strategy}"), "rehearse", None)
    if rehearse:
        rehearse(Trials(Rehearsed(), SEARCHED), units, sizes, options, round(SEARCHED * options.held_back))
        return float(tokens.packed * work[0]), float(tokens.rows * work[1])
    held_back, seen = np.split(np.arange(SEARCHED), [min(max(1, round(SEARCHED * options.held_back)), SEARCHED - 1)])
    lengths = np.full(SEARCHED, tokens.stream / SEARCHED)
    run(Trials(Rehearsed(), SEARCHED), units, sizes, options, seen, held_back, lengths)
    return float(tokens.packed * work[0]), float(tokens.rows * work[1])
