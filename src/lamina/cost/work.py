"""Layer-tokens and arithmetic of what jobs do, by the engine and the naive way.

A layer-token is one token through one decoder layer, the unit in which evaluations of cut models can be counted. The
engine's own trees say what its passes run, apart from padding.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Any

from lamina.config.repairs import Repair
from lamina.engine.candidates import Candidate, carried, grow, swept
from lamina.models.units import all_units, replacement_unit
from lamina.models.workload import GENERATION_FACTOR, TRAINING_FACTOR

HELD_OUT = 0.2  # of the samples of a fit
WEIGHTS = 7  # that `auto` tries
PREFILLS = 3  # prompts that a timed run reads
DRAWS = 8  # of the plans of a block of variants, over which its count is averaged


@dataclass(frozen=True)
class Tokens:
    """Tokens of samples: `packed` lines, distinct model inputs (`rows`), `stream` (context and gold).

    `longest` is the number of tokens of the longest packed line. `scored` is the number of packed tokens with logits.
    `lines` has the lengths of the packed lines, ascending.
    """

    samples: int
    packed: int
    rows: int
    stream: int
    longest: int = 0
    scored: int = 0
    lines: tuple[int, ...] = ()

    def scaled(self, samples: int) -> "Tokens":
        """The same mean lengths with another number of samples."""
        counts = {
            name: round(count * (samples / self.samples))
            for name, count in asdict(self).items()
            if name != "lines"
        }
        same = {"longest": self.longest, "lines": self.lines}
        return Tokens(**counts | {"samples": samples} | same)

    def plus(self, other: "Tokens") -> "Tokens":
        """The tokens of both together."""
        counts = {name: count + getattr(other, name) for name, count in asdict(self).items()}
        lines = tuple(sorted(self.lines + other.lines))
        return Tokens(**counts | {"longest": max(self.longest, other.longest), "lines": lines})


def layer_flops(manifest: Mapping[str, Any], tokens: Tokens) -> float:
    """FLOP of one token through one layer: twice its weights, and attention over half of a line on average."""
    return float(
        2 * manifest["layer_parameters"]
        + 2 * manifest["hidden_size"] * tokens.packed / tokens.samples
    )


def sweep_work(
    tokens: Tokens, n_layers: int, removed: int, pass_: str, kind: str, others: Sequence[str] = ()
) -> tuple[float, float]:
    """Layer-tokens of one sweep of all units on all samples, by the engine and naively.

    `removed` units are gone before the sweep. Replacements by layers of the models `others` are measured like removals.
    """
    left = n_layers - removed if kind == "layer" else n_layers
    if pass_ == "weights":
        return 0.0, 0.0
    if pass_ == "gradient":
        return (
            2.0 * TRAINING_FACTOR * tokens.stream * left,
            1.0 * TRAINING_FACTOR * tokens.stream * left,
        )
    if pass_ == "fit":
        # The unpruned model, once for the Gram matrices and once for the errors.
        return 2.0 * tokens.stream * n_layers, 2.0 * tokens.stream * n_layers
    current, removing = plan(n_layers, removed, kind), pass_ == "removal"
    there = all_units(n_layers, kind, list(current.removed))
    given = [replacement_unit(unit, name) for unit in there for name in others]
    # In the few families with parallel halves, each MLP that is observed costs one layer more.
    wanted, observed = swept(current, [*there, *given], removing=removing)
    tree = grow(carried(wanted.values(), removing), list(observed.values()), n_layers, True)
    each = tokens.rows if removing else tokens.stream
    return float(tokens.packed * tree.layers), each * alone(wanted.values(), n_layers)


def plan(n_layers: int, removed: int, kind: str = "layer", seed: object = "") -> Candidate:
    """A model without `removed` units. Only a run tells which, so they are drawn: the same ones for a `seed`."""
    draw = Random(f"{n_layers} {removed} {kind} {seed}")
    return Candidate(
        frozenset(
            draw.sample(all_units(n_layers, kind), 2 * removed if kind == "both" else removed)
        )
    )


def alone(models: Iterable[Candidate], n_layers: int) -> float:
    """Layers that models run one after the other. A layer without one half counts as half a layer."""
    operations = (operation for model in models for operation in model.operations(n_layers, True))
    return sum(operation.runs * (1 - len(operation.without) / 2) for operation in operations)


def benchmark_work(
    tokens: Tokens, n_layers: int, together: Sequence[int], alone: Sequence[int]
) -> tuple[float, float]:
    """Layer-tokens of measuring variants by log-likelihoods, by the engine and naively, given layers removed from each.

    Variants measured `together` share contexts, and layers up to their first difference. Variants with other weights
    are measured `alone`, row by row.
    """
    drawn = [
        [plan(n_layers, size, seed=(draw, n)) for n, size in enumerate(together)]
        for draw in range(DRAWS)
    ]
    layers = fmean(grow(models, [], n_layers, True).layers for models in drawn)
    rows = sum(n_layers - n for n in alone)
    engine = tokens.packed * layers + tokens.rows * rows
    return engine, float(tokens.rows * (sum(n_layers - n for n in together) + rows))


def timing_work(prompts: Tokens, options: Any, n_layers: int, structures: int) -> float:
    """Layer-tokens that take as long as timing so many structures, each in turn with the unpruned model."""
    written = GENERATION_FACTOR * options.batch * options.generate
    return 2.0 * structures * options.repeats * n_layers * (PREFILLS * prompts.packed + written)


def patch_flops(channels: int, tokens: float, runs: Collection[tuple[float, float]]) -> float:
    """FLOP of the patches of runs of layers, as many operations in float64 counted twice.

    Of each run the products of the streams before and after it, of each start those of one with itself; then two
    decompositions for each run, of some 17 C³ operations with their products.
    """
    sums = 2 * channels**2 * tokens * (len(runs) + len({start for start, _ in runs}))
    return 2 * (sums + 2 * 17 * channels**3 * len(runs))


def fit_work(
    options: Repair, own: str, read: Mapping[str, Tokens], depth: int, sizes: Iterable[int]
) -> float:
    """Layer-tokens of one fit of a repair for plans of several sizes, each with as many runs as possible.

    options: The repair's entry.
    own: The calibration of the variants.
    read: Tokens of the calibrations that it is fitted on, by name.
    depth: Layers of the model.
    sizes: Removed layers of each plan.
    """
    stream, sizes = float(sum(tokens.stream for tokens in read.values())), list(sizes)
    tested = HELD_OUT * read[own].packed * 2 * sum(depth - n for n in sizes)  # with and without it
    if weighed := options.automatic(own):
        # Gram matrices, errors of each chosen weight, and all plans with every weight and with none, held out.
        tried = (
            HELD_OUT
            * sum(read[name].packed for name in weighed)
            * (WEIGHTS + 1)
            * sum(depth - n for n in sizes)
        )
        return stream * depth * (1 + min(len(sizes), WEIGHTS)) + tried + tested
    return stream * options.layer_passes(depth, sizes, TRAINING_FACTOR, HELD_OUT) + tested
