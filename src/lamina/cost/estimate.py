"""The cost of a study before it runs: jobs, layer-tokens and hours per stage, by the engine and by the naive way.

The output embedding, loading and starting are left out. `lamina.cost.forecast` prints it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lamina.config.configuration import Configuration
from lamina.cost.forecast import STAGES, Stage
from lamina.cost.rehearsal import search_work
from lamina.cost.tokens import Tokens
from lamina.cost.work import TRAINING, benchmark_work, fit_work, layer_flops, sweep_work, timing_work
from lamina.study import paths
from lamina.study import requests as studies
from lamina.study.variant import Variant


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
    """The work of every job of a configuration that computes.

    Parameters
    ----------
    models
        Manifests by model.
    calibrations, tasks
        Tokens by (model, calibration) and by (model, task or text).
    """
    depth = {name: manifest["n_layers"] for name, manifest in models.items()}

    def flops(model: str, tokens: Tokens) -> float:
        return layer_flops(models[model], tokens)

    for model, calibration in studies.captures(config):
        tokens = calibrations[model, calibration]
        work = float(tokens.stream * depth[model])
        yield Counted("capture", [paths.activations(model, calibration)], work, work, flops(model, tokens))
    for model, calibration, selector, removed in studies.sweeps(config, carried=True):
        tokens = calibrations[model, calibration]
        work, naive = _sweep(config, calibrations, depth[model], (model, calibration, selector, removed))
        blocks = range(studies.sweep_blocks(config, model, selector))
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
    pass_, kind, _ = studies.sweep_settings(config, selector)
    work, naive = sweep_work(tokens, n_layers, removed, pass_, kind, studies.donors(config, selector))
    if (repair := studies.looped(config, selector)) != "none":
        # One pass for the Gram matrices of the patches, over what is scored as well.
        seen = {calibration, *studies.fitted_on(config, studies.planned_for(calibration, selector)[0], repair)}
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


def is_candidate(config: Configuration, variant: Variant) -> bool:
    """Whether a variant's layers have the base model's weights, apart from linear maps of the stream."""
    entry = None if variant.repair == "none" else config.repairs[variant.repair]
    linear = entry is None or (entry.LINEAR and not entry.FOLDED)
    donors = not variant.is_base and studies.donors(config, variant.selector)
    return linear and variant.healing == "none" and not donors
