"""What a study costs before it is paid for: jobs, layer-tokens and hours per stage, beside those of the naive way.

The output embedding, loading and starting are left out. `lamina.cost.forecast` prints it.
"""

import math
from collections.abc import Mapping
from typing import Any

from lamina.config.configuration import Configuration
from lamina.cost.forecast import STAGES, Stage
from lamina.cost.tokens import Tokens
from lamina.cost.work import TRAINING, benchmark_work, drawn_work, fit_work, layer_flops, search_work, sweep_work
from lamina.modules import load
from lamina.relevance.passes import DRAWN
from lamina.variant import Variant
from lamina.workflow import studies


def estimate(
    config: Configuration,
    models: Mapping[str, Mapping[str, Any]],
    calibrations: Mapping[tuple[str, str], Tokens],
    tasks: Mapping[tuple[str, str], Tokens],
) -> dict[str, Stage]:
    """Cost of every stage of a configuration.

    Parameters
    ----------
    models
        Manifests by model.
    calibrations, tasks
        Tokens by (model, calibration) and by (model, task or text).
    """
    stages = {name: Stage() for name in STAGES}
    depth = {name: manifest["n_layers"] for name, manifest in models.items()}

    def flops(model: str, tokens: Tokens) -> float:
        return layer_flops(models[model], tokens)

    for model, calibration in studies.captures(config):
        tokens, stage = calibrations[model, calibration], stages["capture"]
        stage.jobs += 1
        stage.add(tokens.stream * depth[model], tokens.stream * depth[model], flops(model, tokens))
    for model, calibration, selector, removed in studies.sweeps(config, carried=True):
        tokens, stage = calibrations[model, calibration], stages["sweep"]
        pass_, kind, _ = studies.sweep_settings(config, selector)
        stage.jobs += studies.sweep_blocks(config, selector)
        if pass_ in DRAWN:
            work, naive = drawn_work(tokens, depth[model], removed, getattr(config.metrics, pass_), kind)
        else:
            work, naive = sweep_work(tokens, depth[model], removed, pass_, kind)
        if given := studies.donors(config, selector):
            # Every layer that is there again, replaced by each donor's; so many models more, naively.
            left = depth[model] - removed
            work += len(given) * tokens.packed * left * (left + 1) / 2
            naive += len(given) * tokens.rows * left * left
        if (recovery := studies.looped(config, selector)) != "none":
            # One pass for the Gram matrices of the patches, over what is scored as well.
            seen = {calibration, *studies.fitted_on(config, studies.planned_for(calibration, selector)[0], recovery)}
            fitting = float(sum(calibrations[model, name].stream for name in seen) * depth[model])
            work, naive = work + fitting, naive + fitting
        stage.add(work, naive, flops(model, tokens))
    for (model, calibration, selector), sizes in studies.searches(config).items():
        entry: Any = config.selectors[selector]
        whole = calibrations[model, calibration]
        tokens, stage = whole.scaled(round(whole.samples * (1 - entry.held_back))), stages["search"]
        strategy = load(f"lamina.search.{entry.strategy}")
        tried = strategy.tried(entry, sizes, sum(entry.free(depth[model])), tokens.stream)
        stage.jobs += 1
        stage.add(*search_work(tokens, depth[model], tried), flops(model, tokens))
    variants = studies.variants(config)
    for model, own, selector, recovery in sorted(
        {(v.model, v.calibration, v.selector, v.recovery) for v in variants if v.recovery != "none"}
    ):
        read = {name: calibrations[model, name] for name in studies.fitted_on(config, own, recovery)}
        removed_sizes = studies.sizes(config, model, own, selector, recovery)
        work = fit_work(config.recoveries[recovery], own, read, depth[model], removed_sizes)
        stages["recover"].jobs += 1
        stages["recover"].add(work, work, flops(model, calibrations[model, own]))
    for variant in (v for v in variants if v.healing != "none"):
        settings: Any = config.healings[variant.healing]  # every method trains for epochs
        stage = stages["heal"]
        weights = settings.weights(variant.calibration)
        drawn = {name: weight / max(weights.values()) for name, weight in weights.items()}
        trained = {name: calibrations[variant.model, name] for name in weights}
        steps = settings.epochs * -(-sum(math.ceil(drawn[n] * trained[n].samples) for n in trained) // settings.batch)
        share = min(1.0, (settings.max_steps or steps) / steps) * settings.epochs
        stage.jobs += 1
        passes = TRAINING * (depth[variant.model] - variant.removed)
        # The teacher's forward pass.
        passes += depth[variant.model] if settings.objective != "lm" else 0
        for name, tokens in trained.items():
            work = passes * share * drawn[name] * tokens.stream
            stage.add(work, work, flops(variant.model, tokens))
    for model, calibration, task, block in studies.benchmark_blocks(config):
        tokens, stage = tasks[model, task], stages["benchmark"]
        stage.jobs += 1
        lacking: dict[bool, list[int]] = {True: [], False: []}
        for variant in studies.block_variants(config, model, calibration, task, block):
            lacking[_is_candidate(config, variant)].append(variant.removed)
        stage.add(*benchmark_work(tokens, depth[model], lacking[True], lacking[False]), flops(model, tokens))
    for model, calibration, task, block in studies.generation_blocks(config):
        tokens, stage, asked = tasks[model, task], stages["benchmark"], config.benchmarks.tasks[task].generate
        stage.jobs += 1
        for variant in studies.block_variants(config, model, calibration, task, block):
            # The likeliest answer and the samples, as long as the right ones.
            work = float((1 + asked.samples if asked else 0) * tokens.stream * (depth[model] - variant.removed))
            stage.add(work, work, flops(model, tokens))
    for chosen in (studies.efficiency_variants, studies.draft_variants):
        stages["benchmark"].jobs += sum(bool(chosen(config, model)) for model in config.models)
    return stages


def _is_candidate(config: Configuration, variant: Variant) -> bool:
    """Whether a variant has the base model's weights, but for linear maps of the stream."""
    entry = None if variant.recovery == "none" else config.recoveries[variant.recovery]
    linear = entry is None or (entry.LINEAR and not entry.FOLDED)
    donors = not variant.is_base and studies.donors(config, variant.selector)
    return linear and variant.healing == "none" and not donors
