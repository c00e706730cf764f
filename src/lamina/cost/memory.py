"""The memory that each stage of a study takes, before it runs."""

from collections.abc import Mapping
from typing import Any

from lamina.config.configuration import Configuration
from lamina.cost.forecast import STAGES
from lamina.cost.work import Tokens
from lamina.engine import footprint
from lamina.engine.batches import TOKENS, logit_positions
from lamina.engine.footprint import HOST, Shape
from lamina.study import requests as studies
from lamina.study import sweeps
from lamina.study.sweeps import SweepSelector
from lamina.study.variant import Variant

BENCHMARKED = 64  # requests at a time, as in lamina.evaluation.tasks, which imports lm-eval


def is_candidate(config: Configuration, variant: Variant) -> bool:
    """Whether a variant's layers have the base model's weights, apart from linear maps of the stream."""
    entry = None if variant.repair == "none" else config.repairs[variant.repair]
    linear = entry is None or (entry.LINEAR and not entry.FOLDED)
    replaced = not variant.is_base and config.replacing(variant.selector)
    return linear and variant.healing == "none" and not replaced


def peaks(
    config: Configuration,
    shapes: Mapping[str, Shape],
    calibrations: Mapping[tuple[str, str], Tokens],
    tasks: Mapping[tuple[str, str], Tokens],
) -> dict[str, float]:
    """Bytes by stage, from tokens by (model, calibration) and by (model, task or text); `auto` is the default here."""
    budget = config.sweep.tokens if isinstance(config.sweep.tokens, int) else type(config.sweep)().tokens
    largest = dict.fromkeys(STAGES, 0.0)

    def at_least(stage: str, memory: float) -> None:
        largest[stage] = max(largest[stage], memory)

    for model, calibration in studies.captures(config):
        tokens = calibrations[model, calibration]
        at_least("capture", footprint.capture(shapes[model], int(budget), tokens.longest, tokens.samples))
    for model, calibration, selector, removed in sweeps.sweeps(config, carried=True):
        tokens, shape = calibrations[model, calibration], shapes[model]
        streams = 2 + shape.layers - removed if SweepSelector.parse(selector).settings(config)[0] == "removal" else 1
        scored = -(-tokens.scored // tokens.samples)
        at_least("sweep", footprint.sweep(shape, int(budget), _lengths(tokens), tokens.samples, scored, streams))
    variants = studies.variants(config)
    for variant in variants:
        shape, own = shapes[variant.model], calibrations[variant.model, variant.calibration]
        if variant.repair != "none":
            at_least("repair", footprint.moments(shape, TOKENS, own.longest, own.samples, variant.removed))
        if variant.healing != "none":
            settings: Any = config.healings[variant.healing]
            left, distilled = shape.layers - variant.removed, settings.objective == "distill"
            activations = footprint.heal(shape, left, own.longest, settings.batch, distilled, HOST)
            at_least("heal", activations + (footprint.full(shape, left) if settings.method == "full" else 0))
    for model, calibration, task, block in studies.benchmark_blocks(config):
        tokens, shape = tasks[model, task], shapes[model]
        candidates = [is_candidate(config, v) for v in studies.block_variants(config, model, calibration, task, block)]
        at_least("benchmark", _together(shape, tokens, sum(candidates)))
        if not all(candidates):
            every = tokens.samples * max(1, tokens.rows // max(1, tokens.packed))
            lines = min(every, BENCHMARKED, max(1, logit_positions(shape.vocabulary) // max(1, tokens.longest)))
            at_least("benchmark", footprint.benchmark(shape, tokens.longest, lines, every))
    return largest


def _together(shape: Shape, tokens: Tokens, streams: int) -> float:
    """Bytes of a pass of the engine over a task for so many variants, which `evaluation.together` keeps below HOST."""
    scored = -(-tokens.scored // tokens.samples)

    def predicted(budget: int) -> int:
        return footprint.sweep(shape, budget, _lengths(tokens), max(tokens.samples, budget), scored, max(1, streams))

    budget = min(TOKENS, footprint.budget(HOST, predicted))
    return footprint.sweep(shape, budget, _lengths(tokens), tokens.samples, scored, max(1, streams))


def _lengths(tokens: Tokens) -> range:
    """Lengths that lines may have: the shortest is as far below the mean as the longest is above it."""
    mean = tokens.packed // max(1, tokens.samples)
    return range(max(1, min(tokens.longest, 2 * mean - tokens.longest)), tokens.longest + 1)
