"""The cost of a study before it runs: jobs, layer-tokens, memory and disk per stage, by the engine and the naive way.

The output embedding, loading and starting are left out. `lamina.cost.forecast` prints it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from lamina.config.benchmarks import Perplexity
from lamina.config.configuration import Configuration
from lamina.config.healings import Healing
from lamina.cost import work
from lamina.cost.forecast import STAGES, Stage
from lamina.cost.rehearsal import SearchedModel, search_work
from lamina.cost.work import Tokens, layer_flops
from lamina.data import calibrations as samples_of
from lamina.data import documents
from lamina.data.calibrations import Sample, encode
from lamina.engine import footprint, packing
from lamina.engine.batches import TOKENS, logit_positions
from lamina.engine.budgets import HOST
from lamina.engine.footprint import Shape
from lamina.models.tokenizer import read_tokenizer
from lamina.models.workload import TRAINING_FACTOR
from lamina.selection.tournament import N_EXCHANGED
from lamina.store import checksum, parquet
from lamina.study import paths, sweeps
from lamina.study import requests as studies
from lamina.study.variant import Variant

BENCHMARKED = 64  # requests at a time, as in lamina.evaluation.tasks, which imports lm-eval
SETS = 40  # of a size that a search compares, roughly
ROW = 150  # bytes of a row of samples: in the job's own file, in the gathered table and in the database


def estimate(
    config: Configuration, manifests: list[str], drawn: list[str], tested: list[str]
) -> dict[str, Any]:
    """What results/cost.json says: the cost of each `stage`, the work of the job behind each output, and `notes`.

    manifests, drawn, tested: Files of the models, of their calibrations, and of the benchmark tasks.
    """
    models = {Path(file).parent.name: checksum.read_json(file) for file in manifests}
    calibrations = {
        (path.parent.name, path.stem): counted(samples_of.read(path).samples)
        for path in map(Path, drawn)
    }
    tasks = {}
    for model, manifest in models.items():
        known = {
            calibration: tokens
            for (name, calibration), tokens in calibrations.items()
            if name == model
        }
        for path in map(Path, tested if known else []):
            tasks[model, path.stem] = _of_task(path, config, known)
        for text, entry in config.benchmarks.perplexity.items():
            tasks[model, text] = _of_text(entry, manifest)
    shapes = {model: _shape(manifest) for model, manifest in models.items()}
    works = list(Works(config, models, shapes, calibrations, tasks))
    return {
        "stages": {name: asdict(stage) for name, stage in stages(works).items()},
        "jobs": {
            output: {
                "layer_tokens": cost.layer_tokens / cost.jobs,
                "flops": cost.flops / cost.jobs,
            }
            for _, outputs, cost in works
            for output in outputs
        },
        "notes": studies.outcomes(config),
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
        lines=tuple(sorted(len(line.tokens) for line in lines)),
    )


def _of_task(tested: Path, config: Configuration, known: Mapping[str, Tokens]) -> Tokens:
    """Tokens of a benchmark task: its samples are as long as those of the calibrations of it, or of all.

    Questions of the user's own have the same name as calibration and as benchmark.
    """
    task = tested.stem
    same = [
        c
        for c, entry in config.calibrations.items()
        if c in known and (entry.drawn == [task] or c == task)
    ]
    own = known[same[0]] if same else reduce(Tokens.plus, known.values())
    return own.scaled(parquet.read(tested).num_rows)


def _of_text(entry: Perplexity, manifest: Mapping[str, Any]) -> Tokens:
    """Tokens of a perplexity text, every window counted whole."""
    tokenizer = read_tokenizer(manifest["path"], trust_remote_code=manifest["trust_remote_code"])
    lengths = [
        len(encode(tokenizer, text)) for text in documents.perplexity_texts(entry, Path.cwd())
    ]
    read = round(sum(lengths) * entry.window / (entry.stride or entry.window))
    longest = entry.window if entry.joined is not None else min(max(lengths), entry.window)
    return Tokens(len(lengths), read, read, read, longest, read)


def _shape(manifest: Mapping[str, Any]) -> Shape:
    """The sizes that decide the memory of a model's passes."""
    config = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    dtype = config.dtype if manifest["dtype"] == "auto" else getattr(torch, manifest["dtype"])
    return Shape.of(config, (dtype or torch.float32).itemsize)


Work = tuple[str, list[str], Stage]
"""The stage, the outputs and the cost of jobs that cost the same, each of which writes one of the outputs."""


def _work(
    stage: str,
    outputs: list[str],
    layers: float,
    naive: float,
    flops: float,
    memory: float = 0.0,
    disk: float = 0.0,
) -> Work:
    """Of jobs with so many layer-tokens together, of so many `flops` each, by the engine and the naive way."""
    return (
        stage,
        outputs,
        Stage(len(outputs), layers, layers * flops, naive, naive * flops, memory, disk),
    )


def stages(works: Sequence[Work]) -> dict[str, Stage]:
    """The cost of every stage."""
    return {
        name: reduce(Stage.plus, (cost for stage, _, cost in works if stage == name), Stage())
        for name in STAGES
    }


@dataclass(frozen=True)
class Works:
    """The work of every job that computes, one after the other.

    Manifests and shapes are those of each model, tokens those by (model, calibration) and by (model, task or text).
    """

    config: Configuration
    models: Mapping[str, Mapping[str, Any]]
    shapes: Mapping[str, Shape]
    calibrations: Mapping[tuple[str, str], Tokens]
    tasks: Mapping[tuple[str, str], Tokens]

    def __iter__(self) -> Iterator[Work]:
        yield from chain(
            self._captures(), self._sweeps(), self._searches(), self._repairs(), self._healings()
        )
        yield from chain(self._benchmarks(), self._timings())

    @property
    def _budget(self) -> int:
        """Tokens of a pass; the default for `auto`, which asks the machine."""
        asked = self.config.sweep.tokens
        return int(asked if isinstance(asked, int) else type(self.config.sweep)().tokens)

    def _captures(self) -> Iterator[Work]:
        for model, calibration in studies.captures(self.config):
            tokens, shape = self.calibrations[model, calibration], self.shapes[model]
            layers = float(tokens.stream * self.models[model]["n_layers"])
            memory = footprint.capture(shape, self._budget, tokens.longest, tokens.samples)
            written = [paths.activations(model, calibration)]
            yield _work(
                "capture", written, layers, layers, layer_flops(self.models[model], tokens), memory
            )

    def _sweeps(self) -> Iterator[Work]:
        for model, calibration, selector, removed in sweeps.sweeps(self.config, carried=True):
            tokens, depth = self.calibrations[model, calibration], self.models[model]["n_layers"]
            swept = sweeps.SweepSelector.parse(selector)
            pass_, kind = swept.settings(self.config)
            layers, naive = work.sweep_work(
                tokens, depth, removed, pass_, kind, list(swept.others(self.config))
            )
            if (repair := swept.repair(self.config)) != "none":
                # One pass for the Gram matrices of the patches, over what is scored as well.
                seen = {
                    calibration,
                    *studies.fitted_on(self.config, swept.planned_on(calibration), repair),
                }
                fitting = float(sum(self.calibrations[model, name].stream for name in seen) * depth)
                layers, naive = layers + fitting, naive + fitting
            blocks = range(sweeps.sweep_blocks(self.config, model, selector))
            # Each job more carries the model before the removals once more.
            layers += (len(blocks) - 1) * tokens.packed * (depth - removed)
            written = [
                paths.sweep_block(f"{model}/{calibration}/{selector}", removed, block)
                for block in blocks
            ]
            streams = 2 + depth - removed if pass_ == "removal" else 1
            memory = float(_pass(self.shapes[model], self._budget, tokens, streams))
            if repair != "none":
                # Both folds have a patch for each removal.
                read = [self.calibrations[model, name] for name in sorted(seen)]
                fits = self._fit_memory(model, read, depth - removed)
                waiting = footprint.waiting(self.shapes[model], 2 * (depth - removed))
                memory = max(memory, fits) + waiting
            disk = ROW * tokens.samples * (1 + depth - removed)
            yield _work(
                "sweep",
                written,
                layers,
                naive,
                layer_flops(self.models[model], tokens),
                memory,
                disk,
            )

    def _searches(self) -> Iterator[Work]:
        for (model, calibration, selector), sizes in studies.searches(self.config).items():
            entry, manifest = self.config.selectors[selector], self.models[model]
            names = [calibration, *studies.chosen_on(self.config, calibration, selector)]
            repairs = [name for name in (entry.repair, *entry.repairs) if name]
            searched = SearchedModel(
                manifest["n_layers"],
                manifest["hidden_size"],
                self._budget,
                entry.attention(manifest["attention_share"]),
            )
            work = search_work(
                calibration,
                {name: self.calibrations[model, name] for name in names},
                searched,
                sizes,
                entry,
                {name: self.config.repairs[name] for name in repairs},
            )
            flops = layer_flops(manifest, self.calibrations[model, calibration])
            cost = Stage(
                jobs=1,
                layer_tokens=work.layer_tokens,
                flops=work.layer_tokens * flops + work.patches,
                naive_layer_tokens=work.naive,
                naive_flops=work.naive * flops + work.patches,
                memory=self.search_memory(model, calibration, selector, sizes),
            )
            yield "search", [paths.search(f"{model}/{calibration}/{selector}")], cost

    def search_memory(
        self, model: str, calibration: str, selector: str, sizes: Sequence[int]
    ) -> float:
        """Bytes of a search: its widest pass or the fit of its repairs, and the patches that wait meanwhile."""
        shape = self.shapes[model]
        entry = self.config.selectors[selector]
        names = [calibration, *studies.chosen_on(self.config, calibration, selector)]
        read = [self.calibrations[model, name] for name in names]
        # As many sets as streams have room for: what a search compares at a time is more.
        passes = [_pass(shape, self._budget, tokens, self._budget) for tokens in read]
        repairs = [name for name in (entry.repair, *entry.repairs) if name and name != "none"]
        if not repairs:
            return max(passes)
        runs = most_runs(entry, shape.layers, sizes)
        fits = self._fit_memory(model, read, runs)
        return max(*passes, fits) + footprint.waiting(shape, len(repairs) * runs)

    def _fit_memory(self, model: str, read: Sequence[Tokens], runs: int) -> float:
        """Bytes of fitting repairs of so many runs on samples of these lengths."""
        shape = self.shapes[model]
        return max(footprint.fit(shape, TOKENS, one.longest, one.samples, runs) for one in read)

    def _repairs(self) -> Iterator[Work]:
        repaired = {
            (v.model, v.calibration, v.selector, v.repair) for v in studies.variants(self.config)
        }
        for model, own, selector, repair in sorted(
            place for place in repaired if place[3] != "none"
        ):
            read = {
                name: self.calibrations[model, name]
                for name in studies.fitted_on(self.config, own, repair)
            }
            sizes = studies.sizes(self.config, model, own, selector, repair)
            shape, tokens = self.shapes[model], self.calibrations[model, own]
            layers = work.fit_work(
                self.config.repairs[repair], own, read, self.models[model]["n_layers"], sizes
            )
            memory = footprint.fit(shape, TOKENS, tokens.longest, tokens.samples, sum(sizes))
            tried = work.WEIGHTS if self.config.repairs[repair].automatic(own) else 1
            memory += 2 * tried * sum(sizes) * shape.channels**2 * footprint.FLOAT
            disk = (
                sum(sizes) * shape.channels**2 * footprint.FLOAT
            )  # at most: every removed unit is a run of its own
            written = [paths.patch(f"{model}/{own}/{selector}", repair)]
            yield _work(
                "repair",
                written,
                layers,
                layers,
                layer_flops(self.models[model], tokens),
                memory,
                disk,
            )

    def _healings(self) -> Iterator[Work]:
        for variant in (v for v in studies.variants(self.config) if v.healing != "none"):
            shape, own = (
                self.shapes[variant.model],
                self.calibrations[variant.model, variant.calibration],
            )
            settings = self.config.healings[variant.healing]
            left, distilled = shape.layers - variant.removed, settings.objective == "distill"
            memory = float(
                footprint.heal(shape, left, own.longest, settings.batch, distilled, HOST)
            )
            rank = settings.update_rank
            if rank is None:
                memory += footprint.full(shape, left)
            # Of low ranks at most: those of both parts of a layer.
            ranked = 3 * (shape.channels + shape.inner) + 8 * shape.channels
            numbers = shape.parameters(left) if rank is None else rank * left * ranked
            folder = paths.adapter(variant.key, variant.removed, variant.repair, variant.healing)
            layers, each = self._healing(variant, settings)
            disk = numbers * (shape.size if rank is None else footprint.FLOAT)
            yield _work("heal", [paths.training(folder)], layers, layers, each, memory, disk)

    def _healing(self, variant: Variant, settings: Healing) -> tuple[float, float]:
        """Layer-tokens of healing a variant, and the arithmetic of each, a mean over what it is trained on."""
        manifest, weights = self.models[variant.model], settings.weights(variant.calibration)
        drawn = {name: weight / max(weights.values()) for name, weight in weights.items()}
        trained = {name: self.calibrations[variant.model, name] for name in weights}
        steps = settings.epochs * -(
            -sum(math.ceil(drawn[n] * trained[n].samples) for n in trained) // settings.batch
        )
        share = min(1.0, (settings.max_steps or steps) / steps) * settings.epochs
        passes = TRAINING_FACTOR * (manifest["n_layers"] - variant.removed)
        passes += (
            manifest["n_layers"] if settings.objective != "lm" else 0
        )  # the teacher's forward pass
        layers = {
            name: passes * share * drawn[name] * tokens.stream for name, tokens in trained.items()
        }
        arithmetic = sum(
            layers[name] * layer_flops(manifest, tokens) for name, tokens in trained.items()
        )
        return sum(layers.values()), arithmetic / sum(layers.values())

    def _benchmarks(self) -> Iterator[Work]:
        for model, calibration, task, block in studies.benchmark_blocks(self.config):
            tokens, shape, depth = (
                self.tasks[model, task],
                self.shapes[model],
                self.models[model]["n_layers"],
            )
            variants = studies.block_variants(self.config, model, calibration, task, block)
            together = [v.removed for v in variants if self._is_candidate(v)]
            alone = [v.removed for v in variants if not self._is_candidate(v)]
            cost = work.benchmark_work(tokens, depth, together, alone)
            memory = _benchmark(shape, tokens, len(together), len(alone))
            written = [paths.benchmark(model, calibration, task, block)]
            disk, flops = (
                ROW * tokens.samples * len(variants),
                layer_flops(self.models[model], tokens),
            )
            yield _work("benchmark", written, *cost, flops, memory, disk)
        for model, calibration, task, block in studies.generation_blocks(self.config):
            tokens, asked = self.tasks[model, task], self.config.benchmarks.tasks[task].generate
            variants = studies.block_variants(self.config, model, calibration, task, block)
            left = sum(self.models[model]["n_layers"] - v.removed for v in variants)
            # The likeliest answer and the samples, as long as the right ones.
            layers = float((1 + asked.samples if asked else 0) * tokens.stream * left)
            written = [paths.generation(model, calibration, task, block)]
            yield _work(
                "benchmark", written, layers, layers, layer_flops(self.models[model], tokens)
            )

    def _timings(self) -> Iterator[Work]:
        for model, manifest in self.models.items():
            timing, structures = (
                self.config.benchmarks.efficiency,
                studies.structures(self.config, model),
            )
            if timing and structures:
                length = timing.batch * timing.prompt
                prompts = Tokens(timing.batch, length, timing.batch, length)
                layers = work.timing_work(prompts, timing, manifest["n_layers"], structures)
                yield _work(
                    "benchmark",
                    [paths.efficiency(model)],
                    layers,
                    layers,
                    layer_flops(manifest, prompts),
                )

    def _is_candidate(self, variant: Variant) -> bool:
        """Whether a variant's layers have the base model's weights, apart from linear maps of the stream."""
        entry = None if variant.repair == "none" else self.config.repairs[variant.repair]
        linear = entry is None or entry.LINEAR
        others = not variant.is_base and self.config.replacing(variant.selector)
        return linear and variant.healing == "none" and not others


def most_runs(entry: Any, n_layers: int, sizes: Sequence[int]) -> int:
    """Runs of layers that the sets of a search lack, at most.

    A set of n layers has up to n runs; with one layer exchanged, up to three of them are new. No more runs are there
    than pairs of boundaries.
    """
    if not entry.members:
        return min(n_layers * (n_layers + 1) // 2, SETS * sum(sizes))
    exchanged = 3 * N_EXCHANGED * entry.exchanges * len(sizes)
    return min(n_layers * (n_layers + 1) // 2, len(entry.members) * sum(sizes) + exchanged)


def _pass(shape: Shape, budget: int, tokens: Tokens, streams: int, lines: int = 0) -> int:
    """Bytes of a pass of the engine over samples of `tokens`, or over at least so many `lines` like them."""
    mean, scored = tokens.packed // max(1, tokens.samples), -(-tokens.scored // tokens.samples)
    # The shortest line is as far below the mean as the longest is above it.
    lengths = range(max(1, min(tokens.longest, 2 * mean - tokens.longest)), tokens.longest + 1)
    return footprint.sweep(
        shape, budget, lengths, max(tokens.samples, lines), scored, max(1, streams)
    )


def _benchmark(shape: Shape, tokens: Tokens, together: int, alone: int) -> int:
    """Bytes of a benchmark of so many variants in one pass, which `evaluation.together` keeps below HOST, and alone."""
    fits = footprint.budget(HOST, lambda budget: _pass(shape, budget, tokens, together, budget))
    memory = _pass(shape, min(TOKENS, fits), tokens, together)
    if not alone:
        return memory
    every = tokens.samples * max(1, tokens.rows // max(1, tokens.packed))
    lines = min(
        every, BENCHMARKED, max(1, logit_positions(shape.vocabulary) // max(1, tokens.longest))
    )
    return max(memory, footprint.benchmark(shape, tokens.longest, lines, every))
