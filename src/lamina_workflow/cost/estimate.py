"""The cost of a study before it runs: jobs, layer-tokens, memory and disk of each stage.

Layer-tokens are counted for the engine and for the naive way. Their arithmetic is that of the
layers, and of the output embedding where logits are computed.

Loading and start-up are left out. `lamina_workflow.cost.forecast` prints the result.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig

from lamina import paths
from lamina.data import benchmark_documents, calibrations
from lamina.data.calibrations import Sample, encode_document
from lamina.engine import footprint, packing
from lamina.engine.batches import TOKENS, logit_positions
from lamina.engine.budgets import HOST_BYTES
from lamina.engine.footprint import Shape
from lamina.models.gguf import is_gguf
from lamina.models.tokenizer import read_tokenizer
from lamina.models.workload import TRAINING_FACTOR
from lamina.options.benchmarks import PerplexityEntry
from lamina.options.entry import document_range
from lamina.options.healings import Healing
from lamina.selection.tournament import N_EXCHANGED, N_FINALISTS
from lamina.store import checksum, parquet
from lamina.variant import Variant
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.batches import measure_padding
from lamina_workflow.cost.documents import (
    N_DECODED_SAMPLES,
    count_document_tokens,
    count_style_tokens,
    find_longest_answer,
    measure_characters,
)
from lamina_workflow.cost.forecast import STAGES, Stage
from lamina_workflow.cost.searches import SearchedModel, search_work
from lamina_workflow.cost.work import (
    BENCHMARK_BATCH,
    HELD_OUT,
    WEIGHTS,
    Logits,
    SharingVariant,
    Tokens,
    benchmark_work,
    fit_work,
    layer_flops,
    logit_flops,
    remaining_units,
    sweep_logits,
    sweep_work,
    timing_logits,
    timing_work,
    writing_tokens,
)
from lamina_workflow.study import requests, sweeps

N_COMPARED_SETS = 40  # sets of one size that a search compares, roughly
# Bytes of a row of samples: in the job's own file, in the gathered table and in the database.
SAMPLE_ROW_BYTES = 150


class TrainingWork(NamedTuple):
    """What a healing computes."""

    layer_tokens: float
    flops: float
    """Mean FLOP per layer-token of the training data."""
    logit_flops: float
    """FLOP of the output embedding."""


class JobsWork(NamedTuple):
    """Jobs of a stage that cost the same."""

    stage: str
    outputs: list[str]
    """Each job writes one of them."""
    cost: Stage
    """Cost of all these jobs together."""

    @classmethod
    def of(
        cls,
        stage: str,
        outputs: list[str],
        layer_tokens: float,
        naive_layer_tokens: float,
        flops: float,
        memory: float = 0.0,
        disk: float = 0.0,
        logit_flops: float = 0.0,
    ) -> "JobsWork":
        """The work of jobs with `layer_tokens` in total, at `flops` FLOP each.

        logit_flops: FLOP of the output embedding, over all jobs.
        """
        cost = Stage(
            jobs=len(outputs),
            layer_tokens=layer_tokens,
            flops=layer_tokens * flops + logit_flops,
            naive_layer_tokens=naive_layer_tokens,
            naive_flops=naive_layer_tokens * flops + logit_flops,
            memory=memory,
            disk=disk,
        )
        return cls(stage, outputs, cost)


def estimate_cost(
    config: Configuration,
    manifest_files: list[str],
    calibration_files: list[str],
    task_files: list[str],
) -> dict[str, Any]:
    """The content of results/cost.json: the cost of each of the `stages`, and the work of each job.

    Jobs are named by their outputs (`jobs`); `notes` says what was assumed.

    task_files: Those of the benchmark tasks and the perplexities.
    """
    counted = count_works(config, manifest_files, calibration_files, task_files)
    all_works = list(counted)
    return {
        "stages": {name: asdict(cost) for name, cost in sum_by_stage(all_works).items()},
        "jobs": _work_by_output(all_works),
        "notes": [
            *counted.describe_number_formats(),
            *requests.describe_sizes(config),
            *counted.describe_answers(),
        ],
    }


def count_works(
    config: Configuration,
    manifest_files: list[str],
    calibration_files: list[str],
    task_files: list[str],
    most_samples: int | None = None,
) -> "Works":
    """The work of every job that computes, from the files that these jobs read.

    task_files: Those of the benchmark tasks and the perplexities.
    most_samples: Samples of a calibration that are counted at most; None for the whole file.
    """
    manifests = {Path(file).parent.name: checksum.read_json(file) for file in manifest_files}
    calibration_tokens: dict[tuple[str, str], Tokens] = {}
    decoded_samples: dict[str, list[Sample]] = {model: [] for model in manifests}
    for file in calibration_files:
        calibration_path = Path(file)
        calibration = calibrations.read_calibration(calibration_path)
        decoded_samples[calibration_path.parent.name] += calibration.samples[:N_DECODED_SAMPLES]
        calibration_tokens[calibration_path.parent.name, calibration_path.stem] = count_tokens(
            calibration.samples[:most_samples], calibration.facts.get("longest_answer", 0)
        )
    task_tokens: dict[tuple[str, str], Tokens] = {}
    for model, manifest in manifests.items():
        own_tokens = {
            calibration: tokens
            for (name, calibration), tokens in calibration_tokens.items()
            if name == model
        }
        tokenizer = _read_tokenizer(manifest)
        characters_per_token = measure_characters(tokenizer, decoded_samples[model])
        n_style_tokens = count_style_tokens(tokenizer, manifest)
        for file in task_files:
            name = Path(file).stem
            text_entry = config.benchmarks.perplexity.get(name)
            if text_entry is not None:
                task_tokens[model, name] = _count_text(Path(file), text_entry, tokenizer)
            elif own_tokens:
                task_tokens[model, name] = _count_task(
                    Path(file), config, own_tokens, characters_per_token, n_style_tokens
                )
    shape_by_model = {model: _read_shape(manifest) for model, manifest in manifests.items()}
    return Works(config, manifests, shape_by_model, calibration_tokens, task_tokens)


def sum_by_stage(works: Iterable[JobsWork]) -> dict[str, Stage]:
    """The cost of every stage."""
    cost_by_stage = {stage: Stage() for stage in STAGES}
    for work in works:
        cost_by_stage[work.stage] = cost_by_stage[work.stage].plus(work.cost)
    return cost_by_stage


def _work_by_output(works: Sequence[JobsWork]) -> dict[str, dict[str, float]]:
    """The work of the job that writes each output."""
    work_by_output: dict[str, dict[str, float]] = {}
    for work in works:
        for output in work.outputs:
            work_by_output[output] = {
                "layer_tokens": work.cost.layer_tokens / work.cost.jobs,
                "flops": work.cost.flops / work.cost.jobs,
            }
    return work_by_output


def count_tokens(samples: Sequence[Sample], longest_answer: int = 0) -> Tokens:
    """Tokens of all samples together.

    longest_answer: Tokens of the longest answer that a model may write to a question.
    """
    asked = [sample for sample in samples if sample.kind == "generated"]
    n_row_tokens = 0
    line_lengths: list[int] = []
    n_scored = 0
    n_answer_tokens = 0
    for index, sample in enumerate(samples):
        distinct_inputs = {row.context + row.continuation[:-1] for row in sample.rows}
        n_row_tokens += sum(len(token_ids) for token_ids in distinct_inputs)
        for line in packing.pack_sample(index, sample):
            line_lengths.append(len(line.tokens))
            n_scored += len(packing.scored_positions(line))
        if sample.kind != "text":
            n_answer_tokens += len(sample.rows[sample.gold].continuation)
    return Tokens(
        samples=len(samples),
        packed=sum(line_lengths),
        rows=n_row_tokens,
        stream=sum(len(sample.sequence()) for sample in samples),
        longest=max(line_lengths, default=0),
        scored=n_scored,
        lines=tuple(sorted(line_lengths)),
        answers=n_answer_tokens,
        asked=sum(len(sample.rows[sample.gold].context) for sample in asked),
        longest_written=longest_answer * len(asked),
    )


def _count_task(
    task_file: Path,
    config: Configuration,
    tokens_by_calibration: Mapping[str, Tokens],
    characters_per_token: float,
    n_style_tokens: int,
) -> Tokens:
    """Tokens of a benchmark task.

    Its samples are assumed to be as long as those of a calibration drawn from the same task, if
    there is one. A user's own questions have the same name as calibration and as benchmark.
    """
    task = task_file.stem
    for name, entry in config.calibrations.items():
        if name in tokens_by_calibration and (entry.drawn == [task] or name == task):
            return tokens_by_calibration[name].scaled(parquet.read_table(task_file).num_rows)
    return count_document_tokens(
        task_file,
        characters_per_token,
        config.benchmarks.tasks[task].num_fewshot,
        n_style_tokens,
        find_longest_answer(task, Path.cwd()),
    )


def _read_tokenizer(manifest: Mapping[str, Any]) -> Any:
    return read_tokenizer(manifest["path"], trust_remote_code=manifest["trust_remote_code"])


def _count_text(text_file: Path, entry: PerplexityEntry, tokenizer: Any) -> Tokens:
    """Tokens of a perplexity text; every window counts in full."""
    texts = benchmark_documents.read_texts(text_file)
    start, stop = document_range(entry.documents)
    if stop is not None and entry.joined is None:
        texts = texts[: stop - start]  # `lamina prune --minutes` wrote those of its largest study
    text_lengths = [len(encode_document(tokenizer, text)) for text in texts]
    n_read = round(sum(text_lengths) * entry.window / (entry.stride or entry.window))
    longest_line = entry.window
    lines: list[int] = []  # a joined text has windows of one length, so no padding
    if entry.joined is None:
        longest_line = min(max(text_lengths), entry.window)
        for length in text_lengths:
            lines += [entry.window] * (length // entry.window)
            if length % entry.window:
                lines.append(length % entry.window)
    return Tokens(
        samples=len(text_lengths),
        packed=n_read,
        rows=n_read,
        stream=n_read,
        longest=longest_line,
        scored=n_read,
        lines=tuple(sorted(lines)),
    )


def _read_shape(manifest: Mapping[str, Any]) -> Shape:
    """The sizes of a model that determine the memory of its passes."""
    config = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    dtype = config.dtype if manifest["dtype"] == "auto" else getattr(torch, manifest["dtype"])
    return Shape.of(config, (dtype or torch.float32).itemsize)


@dataclass(frozen=True)
class Works:
    """The work of every job that computes, job by job."""

    config: Configuration
    manifests: Mapping[str, Mapping[str, Any]]
    """Manifest of each model."""
    shapes: Mapping[str, Shape]
    """Shape of each model."""
    calibration_tokens: Mapping[tuple[str, str], Tokens]
    """By model and calibration."""
    task_tokens: Mapping[tuple[str, str], Tokens]
    """By model, and benchmark task or perplexity text."""

    def __iter__(self) -> Iterator[JobsWork]:
        yield from self._estimate_checkpoints()
        yield from self._estimate_captures()
        yield from self._estimate_sweeps()
        yield from self._estimate_searches()
        yield from self._estimate_repairs()
        yield from self._estimate_healings()
        yield from self._estimate_benchmarks()
        yield from self._estimate_generations()
        yield from self._estimate_timings()

    @property
    def _token_budget(self) -> int:
        """Tokens of a pass; the default if it is `auto`, which depends on the machine."""
        configured_budget = self.config.sweep.tokens
        if not isinstance(configured_budget, int):
            configured_budget = type(self.config.sweep)().tokens
        return int(configured_budget)

    def _estimate_checkpoints(self) -> Iterator[JobsWork]:
        """The dequantised checkpoints; models of the same content share one."""
        manifest_by_path = {str(manifest["path"]): manifest for manifest in self.manifests.values()}
        for path, manifest in manifest_by_path.items():
            if Path(path).parts[:1] == ("results",):
                n_bytes = sum(size for size, _ in manifest["files"].values())
                yield JobsWork.of("prepare", [path], 0.0, 0.0, 0.0, disk=n_bytes)

    def _estimate_captures(self) -> Iterator[JobsWork]:
        for model, calibration in requests.list_captures(self.config):
            tokens = self.calibration_tokens[model, calibration]
            manifest = self.manifests[model]
            layer_tokens = float(tokens.stream * manifest["n_layers"])
            memory = footprint.capture_bytes(
                self.shapes[model], self._token_budget, tokens.longest, tokens.samples
            )
            yield JobsWork.of(
                "capture",
                [paths.activations(model, calibration)],
                layer_tokens,
                layer_tokens,
                layer_flops(manifest, tokens),
                memory,
            )

    def _estimate_sweeps(self) -> Iterator[JobsWork]:
        for model, calibration, sweep_name, removed in sweeps.list_sweeps(
            self.config, carried=True
        ):
            yield self._estimate_sweep(model, calibration, sweep_name, removed)

    def _estimate_sweep(
        self, model: str, calibration: str, sweep_name: str, removed: int
    ) -> JobsWork:
        """The blocks of one sweep.

        sweep_name: The part of a sweep's path that otherwise is the selector.
        """
        tokens = self.calibration_tokens[model, calibration]
        n_layers = self.manifests[model]["n_layers"]
        selector = sweeps.SweepSelector.parse(sweep_name)
        pass_, kind = selector.settings(self.config)
        layer_tokens, naive_layer_tokens = sweep_work(tokens, n_layers, removed, pass_, kind)
        n_units = len(remaining_units(n_layers, removed, kind))
        n_streams = 2 + n_units if pass_ == "removal" else 1
        if pass_ == "generate":
            memory = float(_writing_memory(self.shapes[model], tokens))
        else:
            memory = float(_pass_memory(self.shapes[model], self._token_budget, tokens, n_streams))

        loop_repair = selector.repair(self.config)
        if loop_repair != "none":
            plan_calibration = selector.planned_on(calibration)
            fitted_names = requests.fitted_on(self.config, plan_calibration, loop_repair)
            fitted_tokens = [
                self.calibration_tokens[model, name]
                for name in sorted({calibration, *fitted_names})
            ]
            # One pass computes the Gram matrices of the patches, also over the scored samples.
            fit_layer_tokens = float(sum(fitted.stream for fitted in fitted_tokens) * n_layers)
            layer_tokens += fit_layer_tokens
            naive_layer_tokens += fit_layer_tokens
            fit_memory = self._fit_memory(model, fitted_tokens, n_units)
            # Both folds have a patch for each removal.
            waiting_patches = footprint.waiting_patch_bytes(self.shapes[model], 2 * n_units)
            memory = max(memory, fit_memory) + waiting_patches

        logits = sweep_logits(tokens, n_layers, removed, pass_, kind)
        n_blocks = sweeps.sweep_blocks(self.config, model, sweep_name)
        if pass_ != "generate":
            # Each further job runs the model before the removals again.
            layer_tokens += (n_blocks - 1) * tokens.packed * (n_layers - removed)
        key = f"{model}/{calibration}/{sweep_name}"
        return JobsWork.of(
            "sweep",
            [paths.sweep_block(key, removed, block) for block in range(n_blocks)],
            layer_tokens,
            naive_layer_tokens,
            layer_flops(self.manifests[model], tokens),
            memory,
            disk=SAMPLE_ROW_BYTES * tokens.samples * (1 + n_units),
            logit_flops=logit_flops(self.shapes[model], logits),
        )

    def describe_number_formats(self) -> list[str]:
        """One sentence per model whose number format was decided by this machine."""
        sentences: list[str] = []
        for model, manifest in self.manifests.items():
            entry = self.config.models[model]
            if entry.dtype == "auto" and is_gguf(entry.source):
                sentences.append(
                    f"{model} is computed in {manifest['dtype']}, which `dtype: auto` chose for the "
                    "processor of this machine. Write `dtype` for one format on all machines."
                )
        return sentences

    def describe_answers(self) -> list[str]:
        """How many tokens models write at most, in a sentence, if any."""
        n_sweeps = 0
        n_tokens = 0
        for model, calibration, sweep_name, removed in sweeps.list_sweeps(
            self.config, carried=True
        ):
            pass_, kind = sweeps.SweepSelector.parse(sweep_name).settings(self.config)
            if pass_ != "generate":
                continue
            n_sweeps += 1
            n_models = 1 + len(remaining_units(self.manifests[model]["n_layers"], removed, kind))
            n_tokens += n_models * self.calibration_tokens[model, calibration].longest_written
        n_searches = 0
        for (model, calibration, selector), sizes in requests.list_searches(self.config).items():
            asked = self._asked_in_search(model, calibration, selector)
            n_searches += bool(asked.samples)
            n_models = len(sizes) * _count_finalists(self.config.selectors[selector])
            n_tokens += n_models * asked.longest_written
        n_benchmarks = 0
        for model, calibration, task, block in requests.benchmark_blocks(self.config):
            n_variants = len(requests.block_variants(self.config, model, calibration, task, block))
            n_written_tokens = n_variants * self.task_tokens[model, task].longest_written
            n_benchmarks += n_written_tokens > 0
            n_tokens += n_written_tokens
        if not n_tokens:
            return []
        return [
            f"Written answers: {n_sweeps} sweeps, {n_searches} searches and {n_benchmarks} jobs of "
            f"benchmarks generate up to {n_tokens:,} tokens. They are counted as if no answer ended "
            "before the longest length that its task allows."
        ]

    def _estimate_searches(self) -> Iterator[JobsWork]:
        for (model, calibration, selector), sizes in requests.list_searches(self.config).items():
            cost = self._estimate_search(model, calibration, selector, sizes)
            yield JobsWork("search", [paths.search(f"{model}/{calibration}/{selector}")], cost)

    def _estimate_search(
        self, model: str, calibration: str, selector: str, sizes: Sequence[int]
    ) -> Stage:
        entry = self.config.selectors[selector]
        manifest = self.manifests[model]
        searched_model = SearchedModel(
            manifest["n_layers"],
            manifest["hidden_size"],
            self._token_budget,
            entry.attention(manifest["attention_share"]),
        )
        calibration_names = [calibration, *requests.chosen_on(self.config, calibration, selector)]
        counted_work = search_work(
            calibration,
            {name: self.calibration_tokens[model, name] for name in calibration_names},
            searched_model,
            sizes,
            entry,
            {name: self.config.repairs[name] for name in entry.repairs},
        )
        flops = layer_flops(manifest, self.calibration_tokens[model, calibration])
        asked = self._asked_in_search(model, calibration, selector)
        layers_left = sum(manifest["n_layers"] - size for size in sizes)
        written = asked.answer_tokens * _count_finalists(entry) * layers_left
        other_flops = counted_work.patch_flops + logit_flops(
            self.shapes[model], counted_work.logits
        )
        layer_tokens = counted_work.layer_tokens + written
        naive_layer_tokens = counted_work.naive_layer_tokens + written
        return Stage(
            jobs=1,
            layer_tokens=layer_tokens,
            flops=layer_tokens * flops + other_flops,
            naive_layer_tokens=naive_layer_tokens,
            naive_flops=naive_layer_tokens * flops + other_flops,
            memory=self.search_memory(model, calibration, selector, sizes),
        )

    def _asked_in_search(self, model: str, calibration: str, selector: str) -> Tokens:
        """Tokens of the judge questions that sets answer in writing; zero if they do not."""
        entry = self.config.selectors[selector]
        if entry.judge_by != "written":
            return Tokens(0, 0, 0, 0)
        judge = entry.judge or calibration
        tokens = self.calibration_tokens[model, judge]
        share = entry.held_back if judge == calibration else 1.0
        return tokens.scaled(round(share * tokens.samples))

    def search_memory(
        self, model: str, calibration: str, selector: str, sizes: Sequence[int]
    ) -> float:
        """Bytes of a search: its widest pass or the fit of its repairs, and its waiting patches."""
        shape = self.shapes[model]
        entry = self.config.selectors[selector]
        calibration_names = [calibration, *requests.chosen_on(self.config, calibration, selector)]
        tokens_read = [self.calibration_tokens[model, name] for name in calibration_names]
        # A search compares more sets at a time than there are streams, so all streams are used.
        token_budget = self._token_budget
        pass_bytes = [
            _pass_memory(shape, token_budget, tokens, token_budget) for tokens in tokens_read
        ]
        asked = self._asked_in_search(model, calibration, selector)
        if asked.samples:
            pass_bytes.append(_writing_memory(shape, asked))
        if not entry.repairs:
            return max(pass_bytes)
        n_runs = most_runs(entry, shape.layers, sizes)
        fit_memory = self._fit_memory(model, tokens_read, n_runs)
        waiting_patches = footprint.waiting_patch_bytes(shape, len(entry.repairs) * n_runs)
        return max(*pass_bytes, fit_memory) + waiting_patches

    def _fit_memory(self, model: str, tokens_read: Sequence[Tokens], n_runs: int) -> float:
        """Bytes of fitting repairs of `n_runs` runs on samples of these lengths."""
        shape = self.shapes[model]
        return max(
            footprint.fit_peak_bytes(shape, TOKENS, tokens.longest, tokens.samples, n_runs)
            for tokens in tokens_read
        )

    def _estimate_repairs(self) -> Iterator[JobsWork]:
        repaired = {
            (variant.model, variant.calibration, variant.selector, variant.repair)
            for variant in requests.list_variants(self.config)
            if variant.repair != "none"
        }
        for model, own_calibration, selector, repair in sorted(repaired):
            yield self._estimate_repair(model, own_calibration, selector, repair)

    def _estimate_repair(
        self, model: str, own_calibration: str, selector: str, repair: str
    ) -> JobsWork:
        """The fit of a repair for the plans of a selector on the calibration `own_calibration`."""
        options = self.config.repairs[repair]
        shape = self.shapes[model]
        manifest = self.manifests[model]
        tokens = self.calibration_tokens[model, own_calibration]
        tokens_by_calibration = {
            name: self.calibration_tokens[model, name]
            for name in requests.fitted_on(self.config, own_calibration, repair)
        }
        sizes = requests.sizes_of_patches(self.config, model, own_calibration, selector, repair)
        runs_by_size = {size: self.config.selectors[selector].most_runs(size) for size in sizes}
        layer_tokens = fit_work(
            options, own_calibration, tokens_by_calibration, manifest["n_layers"], runs_by_size
        )

        n_runs = sum(runs_by_size.values())
        patches_bytes = n_runs * shape.channels**2 * footprint.FLOAT
        n_weights = WEIGHTS if options.automatic(own_calibration) else 1
        memory = footprint.fit_peak_bytes(shape, TOKENS, tokens.longest, tokens.samples, n_runs)
        memory += 2 * n_weights * patches_bytes
        return JobsWork.of(
            "repair",
            [paths.patch(f"{model}/{own_calibration}/{selector}", repair)],
            layer_tokens,
            layer_tokens,
            layer_flops(manifest, tokens),
            memory,
            disk=patches_bytes,
            # Each plan is tested on held-out samples, with and without the repair.
            logit_flops=logit_flops(shape, Logits(HELD_OUT * tokens.scored * 2 * len(sizes))),
        )

    def _estimate_healings(self) -> Iterator[JobsWork]:
        for variant in requests.list_variants(self.config):
            if variant.healing != "none":
                yield self._estimate_healing(variant)

    def _estimate_healing(self, variant: Variant) -> JobsWork:
        shape = self.shapes[variant.model]
        tokens = self.calibration_tokens[variant.model, variant.calibration]
        options = self.config.healings[variant.healing]
        n_layers = shape.layers - variant.removed
        is_distilled = options.objective == "distill"
        memory = float(
            footprint.healing_bytes(
                shape, n_layers, tokens.longest, options.batch, is_distilled, HOST_BYTES
            )
        )
        if options.update_rank is None:
            manifest = self.manifests[variant.model]
            n_parameters = manifest["parameters"] - variant.removed * manifest["layer_parameters"]
            memory += footprint.full_training_bytes(n_parameters, shape.size)
            disk = n_parameters * shape.size
        else:
            # An upper bound: in both sub-layers of each layer.
            update_widths = 3 * (shape.channels + shape.inner) + 8 * shape.channels
            disk = options.update_rank * n_layers * update_widths * footprint.FLOAT
        folder = paths.adapter(variant.key, variant.removed, variant.repair, variant.healing)
        training = self._training_work(variant, options)
        return JobsWork.of(
            "heal",
            [paths.training(folder)],
            training.layer_tokens,
            training.layer_tokens,
            training.flops,
            memory,
            disk,
            training.logit_flops,
        )

    def _training_work(self, variant: Variant, options: Healing) -> "TrainingWork":
        """The work of healing a variant."""
        manifest = self.manifests[variant.model]
        weights = options.weights(variant.calibration)
        tokens_by_calibration = {
            name: self.calibration_tokens[variant.model, name] for name in weights
        }
        largest_weight = max(weights.values())
        drawn_shares = {name: weight / largest_weight for name, weight in weights.items()}
        n_drawn_samples = sum(
            math.ceil(drawn_shares[name] * tokens.samples)
            for name, tokens in tokens_by_calibration.items()
        )
        n_steps = options.epochs * -(-n_drawn_samples // options.batch)
        n_epochs = min(1.0, (options.max_steps or n_steps) / n_steps) * options.epochs
        if options.keep != "best":
            n_epochs = min(n_epochs, options.keep)
        n_passes = TRAINING_FACTOR * (manifest["n_layers"] - variant.removed)
        n_heads = TRAINING_FACTOR
        if options.objective != "lm":
            n_passes += manifest["n_layers"]  # the teacher's forward pass
        if options.objective == "distill":
            n_heads += 1

        layer_tokens = 0.0
        flops = 0.0
        n_logits = 0.0
        for name, tokens in tokens_by_calibration.items():
            n_trained_tokens = n_epochs * drawn_shares[name] * tokens.stream
            layer_tokens += n_passes * n_trained_tokens
            flops += n_passes * n_trained_tokens * layer_flops(manifest, tokens)
            n_logits += n_heads * n_trained_tokens
        return TrainingWork(
            layer_tokens,
            flops / layer_tokens,
            logit_flops(self.shapes[variant.model], Logits(n_logits)),
        )

    def _estimate_benchmarks(self) -> Iterator[JobsWork]:
        for model, calibration, task, block in requests.benchmark_blocks(self.config):
            tokens = self.task_tokens[model, task]
            manifest = self.manifests[model]
            variants = requests.block_variants(self.config, model, calibration, task, block)
            # Variants that share a pass, and the layers removed from those that run alone.
            together: list[SharingVariant] = []
            removed_alone: list[int] = []
            for variant in variants:
                # Each variant writes its answers alone.
                is_together = self._is_candidate(variant) and not tokens.longest_written
                if not is_together:
                    removed_alone.append(variant.removed)
                    continue
                plan = (variant.selector, variant.removed)
                together.append(SharingVariant(plan, variant.removed, variant.repair != "none"))
            padding = measure_padding(tokens.lines, TOKENS / max(1, len(together)))
            work_count = benchmark_work(
                tokens, manifest["n_layers"], together, removed_alone, padding
            )
            # A model that runs alone computes logits at every position.
            n_logits = float(tokens.scored * len(together) + tokens.rows * len(removed_alone))
            n_logits += writing_tokens(tokens.longest_written, tokens.samples) * len(variants)
            memory = _benchmark_memory(
                self.shapes[model], tokens, len(together), len(removed_alone)
            )
            if tokens.longest_written:
                memory = max(memory, _writing_memory(self.shapes[model], tokens))
            yield JobsWork.of(
                "benchmark",
                [paths.benchmark(model, calibration, task, block)],
                work_count.engine,
                work_count.naive,
                layer_flops(manifest, tokens),
                memory,
                disk=SAMPLE_ROW_BYTES * tokens.samples * len(variants),
                logit_flops=logit_flops(self.shapes[model], Logits(n_logits)),
            )

    def _estimate_generations(self) -> Iterator[JobsWork]:
        for model, calibration, task, block in requests.generation_blocks(self.config):
            tokens = self.task_tokens[model, task]
            manifest = self.manifests[model]
            options = self.config.benchmarks.tasks[task].generate
            variants = requests.block_variants(self.config, model, calibration, task, block)
            layers_left = sum(manifest["n_layers"] - variant.removed for variant in variants)
            # The likeliest answer and the samples, assumed to be as long as the right answers.
            n_answers = 1 + options.samples if options else 0
            n_prompt_tokens = tokens.stream - tokens.answers
            n_answer_tokens = writing_tokens(tokens.answers, tokens.samples)
            layer_tokens = float(n_answers * (n_prompt_tokens + n_answer_tokens) * layers_left)
            yield JobsWork.of(
                "benchmark",
                [paths.generation(model, calibration, task, block)],
                layer_tokens,
                layer_tokens,
                layer_flops(manifest, tokens),
                _writing_memory(
                    self.shapes[model], tokens, options.max_tokens if options else None
                ),
                logit_flops=logit_flops(
                    self.shapes[model], Logits(n_answers * n_answer_tokens * len(variants))
                ),
            )

    def _estimate_timings(self) -> Iterator[JobsWork]:
        options = self.config.benchmarks.efficiency
        for model, manifest in self.manifests.items():
            n_structures = requests.count_structures(self.config, model)
            if not options or not n_structures:
                continue
            n_sequences = sum(load.batch for load in options.loads)
            n_tokens = sum(load.batch * load.prompt for load in options.loads)
            prompts = Tokens(n_sequences, n_tokens, n_sequences, n_tokens)
            layer_tokens = timing_work(prompts, options, manifest["n_layers"], n_structures)
            yield JobsWork.of(
                "benchmark",
                [paths.efficiency(model)],
                layer_tokens,
                layer_tokens,
                layer_flops(manifest, prompts),
                logit_flops=logit_flops(self.shapes[model], timing_logits(options, n_structures)),
            )

    def _is_candidate(self, variant: Variant) -> bool:
        """Whether a variant's layers have the base model's weights, except for linear patches."""
        if variant.healing != "none":
            return False
        if variant.repair != "none" and not self.config.repairs[variant.repair].LINEAR:
            return False
        return variant.is_base or not self.config.selectors[variant.selector].donors


def _count_finalists(entry: Any) -> int:
    """Number of finalists of a size that write answers, bare and with each repair."""
    return N_FINALISTS * (1 + len(entry.repairs))


def most_runs(entry: Any, n_layers: int, sizes: Sequence[int]) -> int:
    """The largest number of different runs of layers that the sets of a search lack.

    A set of n layers has up to n runs; exchanging one layer creates up to three new ones. There are
    no more runs than pairs of boundaries.
    """
    n_pairs = n_layers * (n_layers + 1) // 2
    if not entry.members:
        return min(n_pairs, N_COMPARED_SETS * sum(sizes))
    n_exchanged = 3 * N_EXCHANGED * entry.exchanges * len(sizes)
    return min(n_pairs, len(entry.members) * sum(sizes) + n_exchanged)


def _pass_memory(
    shape: Shape, token_budget: int, tokens: Tokens, n_streams: int, min_lines: int = 0
) -> int:
    """Bytes of an engine pass over samples of `tokens`, or over more lines of such lengths."""
    mean_length = tokens.packed // max(1, tokens.samples)
    n_scored = -(-tokens.scored // tokens.samples)
    # The shortest line is assumed to be as far below the mean as the longest is above it.
    shortest_line = max(1, min(tokens.longest, 2 * mean_length - tokens.longest))
    line_lengths = range(shortest_line, tokens.longest + 1)
    n_lines = max(tokens.samples, min_lines)
    return footprint.sweep_bytes(
        shape, token_budget, line_lengths, n_lines, n_scored, max(1, n_streams)
    )


def _writing_memory(shape: Shape, tokens: Tokens, most_tokens: int | None = None) -> int:
    """Bytes of writing answers to samples of `tokens`, in batches as large as a benchmark's.

    most_tokens: The longest answer in tokens, if known.
    """
    answer_length = most_tokens or tokens.longest_answer
    n_texts = min(tokens.samples, BENCHMARK_BATCH)
    return footprint.writing_bytes(shape, tokens.longest, answer_length, n_texts)


def _benchmark_memory(shape: Shape, tokens: Tokens, n_together: int, n_alone: int) -> int:
    """Bytes of a benchmark, for variants in one pass and for variants that run alone.

    `evaluation.together` keeps the former below HOST_BYTES.
    """
    fitting_budget = footprint.largest_token_budget(
        HOST_BYTES,
        lambda tried_budget: _pass_memory(shape, tried_budget, tokens, n_together, tried_budget),
    )
    memory = _pass_memory(shape, min(TOKENS, fitting_budget), tokens, n_together)
    if not n_alone:
        return memory
    n_requests = tokens.samples * max(1, tokens.rows // max(1, tokens.packed))
    n_fitting = max(1, logit_positions(shape.vocabulary) // max(1, tokens.longest))
    batch_size = min(n_requests, BENCHMARK_BATCH, n_fitting)
    return max(memory, footprint.benchmark_bytes(shape, tokens.longest, batch_size, n_requests))
