"""Layer-tokens and arithmetic of what jobs do, by the engine and the naive way.

A layer-token is one token through one decoder layer, the unit in which evaluations of cut models can be counted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lamina.config.metrics import Presence
from lamina.cost.tokens import Tokens

# A backward pass computes a gradient for the activations and one for the weights: it adds two forward passes.
TRAINING = 3
HELD_OUT = 0.2  # of the samples of a fit
WEIGHTS = 7  # that `auto` tries
PREFILLS = 3  # prompts that a timed run reads
# A token that is generated reads all weights for itself: it takes as long as so many tokens of a prompt.
ALONE = 16


def layer_flops(manifest: Mapping[str, Any], tokens: Tokens) -> float:
    """FLOP of one token through one layer: twice its weights, and attention over half of a line on average."""
    return float(2 * manifest["layer_parameters"] + 2 * manifest["hidden_size"] * tokens.packed / tokens.samples)


def head_flops(manifest: Mapping[str, Any]) -> float:
    """FLOP of the logits of one position."""
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
    """The same for the models that `shapley` or `presence` draws, at most: every order counts as if it ran to its end.

    A model without k of its units forks off at the first of them, behind (n - k) / (k + 1) others on average. `shapley`
    evaluates sets of one size after the other. Each pass over the sets of a size also carries the current model.
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
    forks = sum(layers - (n - lacking) / (lacking + 1) for layers, lacking in zip(ran, sizes, strict=True))
    return tokens.packed * (left * len(passes) + forks), float(tokens.rows * (left + sum(ran)))


def search_work(tokens: Tokens, n_layers: int, tried: Mapping[int, float]) -> tuple[float, float]:
    """Layer-tokens of comparing whole sets, `tried` of each size; sets may share more layers, so this is the most.

    A set of n forks from the model at its first removed layer. From there on it runs L · n / (n + 1) layers less n.
    """
    forks = sum(count * (n_layers * n / (n + 1) - n) for n, count in tried.items())
    return tokens.packed * (n_layers + forks), sum(tokens.rows * (n_layers - n) * count for n, count in tried.items())


def benchmark_work(tokens: Tokens, n_layers: int, together: Sequence[int], alone: Sequence[int]) -> tuple[float, float]:
    """Layer-tokens of measuring variants by log-likelihoods, by the engine and naively, given layers removed from each.

    Variants measured `together` share contexts, and share layers up to the first removed one, which stands behind
    (L - n) / (n + 1) others on average. Variants with other weights are measured `alone`, row by row.
    """
    left = sorted((n_layers - n for n in together), reverse=True)
    forks = sum(layers * (n_layers - layers) / (n_layers - layers + 1) for layers in left[1:])
    rows = sum(n_layers - n for n in alone)
    engine = tokens.packed * (sum(left[:1]) + forks) + tokens.rows * rows
    return float(engine), float(tokens.rows * (sum(left) + rows))


def timing_work(prompts: Tokens, options: Any, n_layers: int, structures: int) -> float:
    """Layer-tokens that take as long as timing so many structures, each in turn with the unpruned model."""
    written = ALONE * options.batch * options.generate
    return 2.0 * structures * options.repeats * n_layers * (PREFILLS * prompts.packed + written)


def fit_work(options: Any, own: str, read: Mapping[str, Tokens], depth: int, sizes: Iterable[int]) -> float:
    """Layer-tokens of one fit of a recovery for plans of several sizes, each with as many runs as possible.

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
        # One pass. Then each run's layer, and the layer that shows how it is called, in training steps and on the
        # held-out samples.
        steps = options.epochs * (TRAINING + 1) * (1 - HELD_OUT)
        looks = 2 * ((options.epochs + 1) * HELD_OUT + 1 - HELD_OUT)
        return stream * (depth + sum(sizes) * (steps + looks))
    if getattr(options, "refit", False):
        # For each run two passes and one for the absolute errors; after the first run also passes of a cut model.
        return stream * depth * sum(3 + 6 * (size - 1) for size in sizes)
    if weighed := options.automatic(own):
        # Gram matrices, errors of each chosen weight, and all plans with every weight and with none, held out.
        tried = HELD_OUT * sum(read[name].packed for name in weighed) * (WEIGHTS + 1) * sum(depth - n for n in sizes)
        return stream * depth * (1 + min(len(sizes), WEIGHTS)) + tried
    # One pass for the Gram matrices; absolute errors of a linear map take one and a half over the held-out samples.
    return stream * depth * (1 + 1.5 * HELD_OUT if options.LINEAR else 1)
