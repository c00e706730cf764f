"""What a study costs before it is paid for: jobs, layer-tokens and hours per stage, beside those of the naive way.

A layer-token is one token through one decoder layer, the unit in which evaluations of cut models can be counted. The
output embedding, loading and starting are left out. `lamina.workflow.plan` prints it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lamina.config.configuration import Configuration
from lamina.config.metrics import Presence
from lamina.workflow import studies
from lamina.workflow.plan import STAGES, Stage
from lamina.workflow.tokens import Tokens

# A backward pass computes a gradient for the activations and one for the weights: twice a forward pass, on top of it.
TRAINING = 3
HELD_OUT = 0.2  # of the samples of a fit
WEIGHTS = 7  # that `auto` tries


def layer_flops(manifest: Mapping[str, Any], tokens: Tokens) -> float:
    """Of one token through one layer: its weights twice, and attention over half of a line on average."""
    return float(2 * manifest["layer_parameters"] + 2 * manifest["hidden_size"] * tokens.packed / tokens.samples)


def head_flops(manifest: Mapping[str, Any]) -> float:
    """Of the logits of one position."""
    return float(2 * manifest["hidden_size"] * manifest["vocabulary"])


def sweep_work(tokens: Tokens, n_layers: int, removed: int, pass_: str, kind: str) -> tuple[float, float]:
    """Layer-tokens of one sweep, by the engine with all units on all samples, and naively.

    The engine carries the current model through the L - n layers left, each fork through the layers after its own, and
    the unpruned model from the first removed layer on (L·n / (n + 1) layers, for a layer drawn at random). A fork
    without one half of its layer still runs the other, which counts as a whole layer here.
    """
    left = n_layers - removed if kind == "layer" else n_layers
    if pass_ == "weights":
        return 0.0, 0.0
    if pass_ == "gradient":
        return 2.0 * TRAINING * tokens.stream * left, 1.0 * TRAINING * tokens.stream * left
    if pass_ == "fit":
        # The unpruned model, once for the Gram matrices and once for the errors.
        return 2.0 * tokens.stream * n_layers, 2.0 * tokens.stream * n_layers
    if pass_ == "stream":
        return float(tokens.packed * left), float(tokens.stream * left)
    units = n_layers - removed
    own = 0 if kind == "layer" else 1
    forks = units * (left - 1) / 2 + own * units
    base = n_layers * removed / (removed + 1)
    naive = tokens.rows * (left + units * (left - 1 + own / 2))
    return tokens.packed * (left + forks + base), float(naive)


def drawn_work(tokens: Tokens, n_layers: int, removed: int, options: Any, kind: str) -> tuple[float, float]:
    """The same of the models that `shapley` or `presence` draws, at most: no order is cut short at chance.

    A model without k of its units forks off at the first of them, behind (n - k) / (k + 1) others on average. `shapley`
    evaluates sets of one size after the other, each in a pass in which the current model takes part.
    """
    n, halves = n_layers - removed, kind != "layer"
    left = n_layers if halves else n
    if isinstance(options, Presence):
        lacking = min(max(1, n - round(options.kept * n)), n - 1)
        passes, asked = [lacking], options.draws
    else:
        depth = min(options.local or n, n)
        passes, asked = list(range(1, depth + 1)), options.permutations * -(-n // depth)
    sizes = [lacking for lacking in passes for _ in range(min(asked, math.comb(n, lacking)))]
    ran = [left - (0 if halves else lacking) for lacking in sizes]
    forks = sum(each - (n - lacking) / (lacking + 1) for each, lacking in zip(ran, sizes, strict=True))
    return tokens.packed * (left * len(passes) + forks), float(tokens.rows * (left + sum(ran)))


def search_work(tokens: Tokens, n_layers: int, tried: Mapping[int, float]) -> tuple[float, float]:
    """Layer-tokens of comparing whole sets, `tried` of each size; what is counted is above what sets share further on.

    A set forks from the model at its first removed layer, the L · n / (n + 1) layers from there on being n fewer.
    """
    forks = sum(count * (n_layers * n / (n + 1) - n) for n, count in tried.items())
    return tokens.packed * (n_layers + forks), sum(tokens.rows * (n_layers - n) * count for n, count in tried.items())


def fit_work(options: Any, own: str, read: Mapping[str, Tokens], depth: int, sizes: Iterable[int]) -> float:
    """Layer-tokens of one fit of a recovery for plans of several sizes, with as many runs in each as may be.

    Parameters
    ----------
    options
        The recovery's entry.
    own
        The calibration of the variants.
    read
        Tokens of the calibrations that it is fitted on, by name.
    depth
        Layers of the model.
    sizes
        Removed layers of each plan.
    """
    stream, sizes = float(sum(tokens.stream for tokens in read.values())), list(sizes)
    if options.method == "streamline":
        # One pass. Then each run's layer, and the one that shows how it is called, in steps and on what is held out.
        steps = options.epochs * (TRAINING + 1) * (1 - HELD_OUT)
        looks = 2 * ((options.epochs + 1) * HELD_OUT + 1 - HELD_OUT)
        return stream * (depth + sum(sizes) * (steps + looks))
    if getattr(options, "refit", False):
        # For each run two passes and that for the absolute errors, after the first run behind a cut model too.
        return stream * depth * sum(3 + 6 * (size - 1) for size in sizes)
    if weighed := options.automatic(own):
        # Gram matrices, errors of each chosen weight, and all plans with all weights and none on what is held out.
        tried = HELD_OUT * sum(read[name].packed for name in weighed) * (WEIGHTS + 1) * sum(depth - n for n in sizes)
        return stream * depth * (1 + min(len(sizes), WEIGHTS)) + tried
    # One pass for the Gram matrices; for absolute errors of a linear map one over what is held out and half as much.
    return stream * depth * (1 + 1.5 * HELD_OUT if options.LINEAR else 1)


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
        if pass_ in studies.DRAWN:
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
        tried = entry.tried(sizes, sum(entry.free(depth[model])), tokens.stream)
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
        for variant in studies.block_variants(config, model, calibration, task, block):
            work = float(tokens.rows * (depth[model] - variant.removed))
            stage.add(work, work, flops(model, tokens))
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
