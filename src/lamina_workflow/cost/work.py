"""Layer-tokens and arithmetic of jobs, for the engine and for the naive way.

A layer-token is one token through one decoder layer, the unit that counts evaluations of pruned
models. The naive way evaluates each pruned model alone and row by row. The engine's work is counted
on its own trees. Only benchmarks have batches so large that their padding counts.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from lamina.engine.candidates import Candidate, carried_models, grow_tree, plan_sweep
from lamina.models.units import Repetition, all_units, list_steps, list_visits
from lamina.models.workload import TRAINING_FACTOR, count_step
from lamina.options.repairs import Repair

if TYPE_CHECKING:  # imports torch
    from lamina.engine.footprint import Shape

BENCHMARK_BATCH = 64  # requests at a time, as in lamina.evaluation.tasks, which imports lm-eval
HELD_OUT = 0.2  # of the samples of a fit
WEIGHTS = 7  # weights that `auto` tries
N_PREFILLS = 3  # prompts that a timed run reads
N_DRAWS = 8  # random plans of a block of variants, over which the count is averaged
# Operations to decompose the matrices of one run of removed units and multiply them, in C³.
DECOMPOSITION_OPERATIONS = 17
SINGLE_BYTES = 4  # of a number in float32
# Reading one logit takes as long as this many operations of matrix products, in float32 and in 16
# bits. The processor has products in bfloat16; its memory and its exponential are the limit.
SINGLE_READING = 600
HALF_READING = 3500


class WorkCount(NamedTuple):
    """Layer-tokens of the same measurements, counted in two ways."""

    engine: float
    naive: float


@dataclass(frozen=True)
class Tokens:
    """How many tokens samples have, counted in several ways."""

    samples: int
    packed: int
    """Tokens in the lines into which the engine packs the rows of each sample."""
    rows: int
    """Tokens in the distinct inputs of the model, each run alone."""
    stream: int
    """Tokens in contexts and right answers."""
    longest: int = 0
    """Tokens in the longest packed line."""
    scored: int = 0
    """Packed tokens whose logits are needed."""
    lines: tuple[int, ...] = ()
    """Tokens in each packed line, ascending."""
    answers: int = 0
    """Tokens in right answers to questions, with their stops."""
    asked: int = 0
    """Tokens in the questions of samples with written answers."""
    longest_written: int = 0
    """Tokens in written answers, if all have the maximum length."""

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer that may be written; at least the mean right answer's."""
        return math.ceil(max(self.longest_written, self.answers) / max(1, self.samples))

    @property
    def answer_tokens(self) -> float:
        """Tokens of a prompt that takes as long as all questions with their longest answers."""
        return self.asked + writing_tokens(self.longest_written, self.samples)

    def scaled(self, samples: int) -> "Tokens":
        """The tokens of another number of samples with the same mean lengths."""
        ratio = samples / self.samples
        return Tokens(
            samples=samples,
            packed=round(self.packed * ratio),
            rows=round(self.rows * ratio),
            stream=round(self.stream * ratio),
            longest=self.longest,
            scored=round(self.scored * ratio),
            lines=self.lines,
            answers=round(self.answers * ratio),
            asked=round(self.asked * ratio),
            longest_written=round(self.longest_written * ratio),
        )


def layer_flops(manifest: Mapping[str, Any], tokens: Tokens) -> float:
    """FLOP of one token through one layer.

    Twice its weights, and attention over half of a line on average.
    """
    attention = 2 * manifest["hidden_size"] * tokens.packed / tokens.samples
    return float(2 * manifest["layer_parameters"] + attention)


class Logits(NamedTuple):
    """Positions whose logits are computed, and how many of them are read."""

    positions: float
    compared: float = 0.0
    """Positions of these whose logits are also compared with the base model's."""


def logit_flops(shape: "Shape", logits: Logits) -> float:
    """FLOP of logits: the output embedding, and the equivalent of reading them in operations."""
    reading = SINGLE_READING if shape.size == SINGLE_BYTES else HALF_READING
    product_flops = 2.0 * shape.channels * shape.vocabulary * logits.positions
    return product_flops + reading * shape.vocabulary * (logits.positions + logits.compared)


def sweep_logits(tokens: Tokens, n_layers: int, removed: int, pass_: str, kind: str) -> Logits:
    """The logits of one sweep of all units; arguments as for `sweep_work`."""
    n_models = 1 + len(remaining_units(n_layers, removed, kind))
    if pass_ == "removal":
        n_carried = 1 if removed else 0  # the base model
        n_positions = float(tokens.scored * (n_models + n_carried))
        return Logits(n_positions, n_positions)
    if pass_ == "generate":
        return Logits(n_models * writing_tokens(tokens.longest_written, tokens.samples))
    if pass_ == "gradient":
        return Logits(float(TRAINING_FACTOR * tokens.stream))
    return Logits(float(tokens.scored) if pass_ == "stream" else 0.0)


def sweep_work(tokens: Tokens, n_layers: int, removed: int, pass_: str, kind: str) -> WorkCount:
    """The work of one sweep of all units on all samples.

    removed: Units that are removed before the sweep.
    kind: Kind of the units: `layer`, `attention`, `mlp` or `both`.
    """
    n_remaining = n_layers - removed if kind == "layer" else n_layers
    if pass_ == "weights":
        return WorkCount(0.0, 0.0)
    if pass_ == "gradient":
        training_tokens = TRAINING_FACTOR * tokens.stream * n_remaining
        return WorkCount(2.0 * training_tokens, 1.0 * training_tokens)

    is_removing = pass_ == "removal"
    current_model = draw_plan(n_layers, removed, kind)
    units = remaining_units(n_layers, removed, kind)
    if pass_ == "generate":
        cut_models, _ = plan_sweep(current_model, units)
        layer_tokens = tokens.answer_tokens * count_layers(cut_models.values(), n_layers)
        return WorkCount(layer_tokens, layer_tokens)
    # In the few families with parallel sub-layers, observing an MLP costs one more layer.
    candidates, observations = plan_sweep(current_model, units, is_removing=is_removing)
    carried_streams = carried_models(candidates.values(), is_removing)
    tree = grow_tree(carried_streams, list(observations.values()), n_layers, True)
    naive_tokens = tokens.rows if is_removing else tokens.stream
    return WorkCount(
        engine=float(tokens.packed * tree.layers),
        naive=naive_tokens * count_layers(candidates.values(), n_layers),
    )


def remaining_units(n_layers: int, removed: int, kind: str) -> list[str]:
    """The units that are removed in turn from the model of `draw_plan`."""
    return all_units(n_layers, kind, list(draw_plan(n_layers, removed, kind).edits))


def draw_plan(n_layers: int, removed: int, kind: str = "layer") -> Candidate:
    """A model without `removed` units, or layers' worth of units if `kind` is `both`.

    Only a run shows which units are removed, so they are drawn, always the same ones. Below
    size 0, layers run again.
    """
    generator = Random(f"{n_layers} {removed} {kind} ")
    if removed < 0:
        return _draw_repetitions(n_layers, -removed, generator)
    n_units = 2 * removed if kind == "both" else removed
    return Candidate(frozenset(generator.sample(all_units(n_layers, kind), n_units)))


def _draw_repetitions(n_layers: int, n_extra: int, generator: Random) -> Candidate:
    """A model with `n_extra` additional passes through layers, spread evenly over the layers."""
    drawn_layers = generator.sample(range(n_layers), n_layers)
    n_rounds, n_more = divmod(n_extra, n_layers)
    edits: set[str] = set()
    for index, layer in enumerate(drawn_layers):
        times = 1 + n_rounds + (index < n_more)
        if times > 1:
            edits.add(str(Repetition(layer, layer, times)))
    return Candidate(frozenset(edits))


class SharingVariant(NamedTuple):
    """A variant that is measured in one pass with others."""

    plan: Hashable
    """Variants with the same plan lack the same layers."""
    removed: int
    is_patched: bool = False


def draw_variants(
    n_layers: int, variants: Sequence[SharingVariant], seed: object
) -> list[Candidate]:
    """Models of these sizes whose sets partly agree, always the same ones for a `seed`.

    Real selectors agree in part, since they rank the layers of one model, and seldom remove a layer
    of the first third (Qwen2.5-Coder-0.5B, SmolLM2-135M). So variants share much of a pass. Below
    size 0, layers run again.
    """
    generator = Random(f"{n_layers} {seed}")
    shared_scores = [generator.random() for _ in range(n_layers)]
    drawn_plans: dict[Hashable, Candidate] = {}
    for variant in variants:
        if variant.plan in drawn_plans:
            continue
        if variant.removed < 0:
            drawn_plans[variant.plan] = _draw_repetitions(n_layers, -variant.removed, generator)
            continue
        scores = [shared + generator.random() for shared in shared_scores]
        ranked_layers = sorted(
            range(n_layers), key=lambda layer: (layer < n_layers // 3, scores[layer])
        )
        removed_layers = map(str, ranked_layers[: variant.removed])
        drawn_plans[variant.plan] = Candidate(frozenset(removed_layers))

    candidates: list[Candidate] = []
    for variant in variants:
        edits = drawn_plans[variant.plan].edits
        patches: dict[Any, Any] = {}
        if variant.is_patched and variant.removed > 0:
            # A patch at the end of each run, unlike those of other variants.
            ends = [layer + 1 for layer in map(int, edits) if str(layer + 1) not in edits]
            patches = {(end - 1, end): object() for end in ends}
        candidates.append(Candidate(edits, patches))
    return candidates


def count_layers(candidates: Iterable[Candidate], n_layers: int) -> float:
    """Layers that models run in total; a layer without one sub-layer counts half."""
    n_layers_run = 0.0
    for candidate in candidates:
        for visit in list_visits(list_steps(candidate.edits, n_layers)):
            n_layers_run += 1 - len(visit.without) / 2
    return n_layers_run


def benchmark_work(
    tokens: Tokens,
    n_layers: int,
    together: Sequence[SharingVariant],
    removed_alone: Sequence[int],
    padding: float = 1.0,
) -> WorkCount:
    """The work of measuring variants by log-likelihoods, or by the answers that they write.

    together: The variants that share one pass: contexts, and layers up to their first difference.
    removed_alone: Number of layers removed from each variant with weights of its own, which is
        measured row by row.
    padding: Positions of the batches of a shared pass, by the tokens of their lines.
    """
    layers_of_draws = []
    for draw in range(N_DRAWS):
        plans = draw_variants(n_layers, together, draw)
        layers_of_draws.append(grow_tree(plans, [], n_layers, True).layers)
    layers_alone = sum(n_layers - removed for removed in removed_alone)
    layers_together = sum(n_layers - variant.removed for variant in together)
    layers_in_all = layers_together + layers_alone
    written_layer_tokens = writing_tokens(tokens.longest_written, tokens.samples) * layers_in_all
    packed_layer_tokens = tokens.packed * padding * fmean(layers_of_draws)
    scored_layer_tokens = packed_layer_tokens + tokens.rows * layers_alone
    return WorkCount(
        engine=scored_layer_tokens + written_layer_tokens,
        naive=tokens.rows * layers_in_all + written_layer_tokens,
    )


def writing_tokens(n_tokens: int, n_samples: int) -> float:
    """Tokens of prompts that would take as long as writing `n_tokens` of answers to all samples."""
    n_texts = max(1, min(n_samples, BENCHMARK_BATCH))
    return n_tokens / n_texts * count_step(n_texts)


def timing_work(prompts: Tokens, options: Any, n_layers: int, n_structures: int) -> float:
    """Layer-tokens that take as long as timing `n_structures`, each in turn with the base model.

    prompts: Those of all loads.
    options: The configuration's `benchmarks: efficiency`.
    """
    tokens_per_run = N_PREFILLS * prompts.packed + _generated_tokens(options)
    return 2.0 * n_structures * options.repeats * n_layers * tokens_per_run


def timing_logits(options: Any, n_structures: int) -> Logits:
    """The logits of the tokens that `timing_work` generates."""
    return Logits(2.0 * n_structures * options.repeats * _generated_tokens(options))


def _generated_tokens(options: Any) -> int:
    """Tokens of a prompt that would take as long as generating those of one run of all loads."""
    return int(options.generate * sum(count_step(load.batch) for load in options.loads))


def patch_flops(channels: int, n_tokens: float, runs: Collection[tuple[float, float]]) -> float:
    """FLOP of the patches of runs of removed units. Operations in float64 count twice.

    Each run needs the products of the streams before and after it; each start, those of its stream
    with itself. Then each run needs two decompositions, some 17 C³ operations with their
    products.
    """
    n_starts = len({start for start, _ in runs})
    product_flops = 2 * channels**2 * n_tokens * (len(runs) + n_starts)
    return 2 * (product_flops + 2 * DECOMPOSITION_OPERATIONS * channels**3 * len(runs))


def fit_work(
    options: Repair,
    own_calibration: str,
    tokens_by_calibration: Mapping[str, Tokens],
    n_layers: int,
    runs_by_size: Mapping[int, int],
) -> float:
    """Layer-tokens of a fit for plans of several sizes.

    options: The repair's entry in the configuration.
    own_calibration: The calibration of the variants.
    tokens_by_calibration: Tokens of the calibrations that it is fitted on, by name.
    runs_by_size: The largest number of runs in each plan, by the plan's removed layers.
    """
    n_fit_tokens = float(sum(tokens.stream for tokens in tokens_by_calibration.values()))
    layers_left = sum(n_layers - size for size in runs_by_size)
    # Each plan on the held-out samples, with and without the repair.
    test_layer_tokens = HELD_OUT * tokens_by_calibration[own_calibration].packed * 2 * layers_left
    weighed_calibrations = options.automatic(own_calibration)
    if not weighed_calibrations:
        runs = list(runs_by_size.values())
        n_passes = options.layer_passes(n_layers, runs, TRAINING_FACTOR, HELD_OUT)
        return n_fit_tokens * n_passes + test_layer_tokens

    # Gram matrices, and the errors of each chosen weight.
    fit_layer_tokens = n_fit_tokens * n_layers * (1 + min(len(runs_by_size), WEIGHTS))
    # All plans with every weight and with none, on held-out samples.
    n_weighed_tokens = sum(tokens_by_calibration[name].packed for name in weighed_calibrations)
    weighing_layer_tokens = HELD_OUT * n_weighed_tokens * (WEIGHTS + 1) * layers_left
    return fit_layer_tokens + weighing_layer_tokens + test_layer_tokens
