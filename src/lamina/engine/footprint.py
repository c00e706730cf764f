"""Memory that a stage needs in addition to process and weights, in bytes.

It is predicted from shapes and the budget of tokens. Each function counts what is in memory at the
same time where its stage needs most. `make plan` prints it, and `tokens: auto` is the largest
budget whose prediction fits.

In all functions, `token_budget` is that of a pass, in token positions, `line_length` the tokens of
a line, and `n_lines` how many lines there are.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lamina.engine import budgets
from lamina.engine.budgets import LOGIT_NUMBERS
from lamina.engine.moments import BATCH
from lamina.engine.taps import count_positions
from lamina.models.sizes import count_cached_numbers

FLOAT = 4
DOUBLE = 8
LEAST_BUDGET = 64  # tokens
# Numbers that consumers of streams and of logits convert to another type at a time.
_STREAM_CHUNK = 1 << 21
_LOGIT_CHUNK = 1 << 23


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide the memory of a pass."""

    layers: int
    """L"""
    channels: int
    """C"""
    inner: int
    """Width of an MLP."""
    vocabulary: int
    """V"""
    size: int
    """Bytes of a number."""
    cached: int = 0
    """Numbers of the keys and values of a token in a layer."""

    @classmethod
    def of(cls, config: Any, size: int) -> "Shape":
        """The shape of a transformers configuration.

        An MLP of unknown width is taken to be 4 C wide. If a width differs from layer to layer, the
        largest counts.
        """
        text = config.get_text_config(decoder=True)
        channels = text.hidden_size
        inner = _largest(text, "intermediate_size") or _largest(text, "ffn_dim") or 4 * channels
        cached = count_cached_numbers(text)
        return cls(text.num_hidden_layers, channels, inner, text.vocab_size, size, cached)

    def passing(self, line_length: int) -> int:
        """Bytes of a position on its way through the layers, in a line of so many tokens.

        The MLP needs most: what entered the layer, the stream after its attention, the norm's
        output and its own, and three inner activations; and the line's row of the mask, as truth
        values and as numbers.
        """
        return self.size * (4 * self.channels + 3 * self.inner + line_length) + line_length

    def stream(self) -> int:
        """Bytes of a position that is kept."""
        return self.channels * self.size


def capture_bytes(shape: Shape, token_budget: int, line_length: int, n_lines: int) -> int:
    """Bytes of `capture_similarities`: all streams, and three numbers per pair and sample."""
    n_boundaries = shape.layers + 1
    n_positions = _batch_positions(
        count_positions(token_budget, n_boundaries), line_length, n_lines
    )
    stream_numbers = n_positions * n_boundaries * shape.channels
    # A chunk: gathered, stacked, and its magnitudes in float64.
    chunk = (2 * FLOAT + DOUBLE) * min(stream_numbers, _STREAM_CHUNK)
    distances = 3 * DOUBLE * n_lines * n_boundaries**2
    return (
        stream_numbers * shape.size
        + max(n_positions * shape.passing(line_length), chunk)
        + distances
    )


def sweep_bytes(
    shape: Shape,
    token_budget: int,
    lengths: Collection[int],
    n_lines: int,
    n_scored: int,
    n_streams: int,
) -> int:
    """Bytes of a pass of the engine over some lines.

    The pass carries the current model, and all but one of the streams fork off it. The widest pass
    need not be that of the longest line: a shorter line may carry more streams.

    lengths: Lengths of the lines.
    n_scored: The most positions of a line whose logits are needed.
    n_streams: Streams of the whole sweep.
    """
    needed = [
        _pass_bytes(shape, token_budget, length, n_lines, min(n_scored, length), n_streams)
        for length in lengths
    ]
    return round(max(needed))


def _pass_bytes(
    shape: Shape, token_budget: int, line_length: int, n_lines: int, n_scored: int, n_streams: int
) -> float:
    """Bytes of a pass as `Session.measure` fills it.

    It has at least one line, and more while all streams have room. The number of lines is a
    fraction, because short lines fill the rest of the budget after long ones.
    """
    cost = line_length + n_scored * shape.vocabulary / (4 * shape.channels)
    n_together = min(n_lines, max(1, token_budget / n_streams / cost))
    # The groups are as even as `group_candidates` makes them, with the current model in each.
    max_forks = max(1, int(token_budget / (line_length * n_together)) - 1)
    n_forks = n_streams - 1
    n_groups = max(1, -(-n_forks // max_forks))
    n_carried = 1 + -(-n_forks // n_groups)

    # In each layer at least one of n streams does not run: the one whose layer is removed there.
    running_bytes = max(1, n_carried - 1) * shape.passing(line_length)
    layer_bytes = line_length * (running_bytes + n_carried * shape.stream())
    logit_bytes = _logit_bytes(shape, n_together * n_scored, n_carried, n_streams)
    return max(n_together * layer_bytes, logit_bytes)


def _logit_bytes(shape: Shape, n_positions: float, n_carried: int, n_streams: int) -> float:
    """Bytes of the logits of a pass, and of what is computed from them.

    n_positions: Scored positions of each stream.
    n_carried: Streams of the pass.
    n_streams: Streams of all passes; a single one is not compared with another.
    """
    stream_logits = n_positions * shape.vocabulary
    # Of a large vocabulary some positions at a time, from what the head is given.
    all_logits = stream_logits * n_carried
    held_logits = min(all_logits, max(LOGIT_NUMBERS, shape.vocabulary * n_carried))
    head_input = 0.0
    if held_logits < all_logits:
        head_input = n_positions * n_carried * shape.stream()

    # Streams are read one after the other, some positions at a time: in float32, with their
    # exponentials, and for their distance from the base with those of both, their mean, and the
    # result of one more operation.
    is_compared = n_streams > 1
    n_arrays = 4 if is_compared else 1
    if shape.size < FLOAT:
        n_arrays += 2 if is_compared else 1
    read_logits = min(stream_logits, _LOGIT_CHUNK)
    return held_logits * shape.size + head_input + read_logits * n_arrays * FLOAT


def moment_bytes(
    shape: Shape, token_budget: int, line_length: int, n_lines: int, n_runs: int
) -> int:
    """Bytes of sums for patches.

    Four matrices for each run of a turn, and two streams of a batch in float64.
    """
    run_bytes = budgets.sums_bytes(1, 1, shape.channels)
    n_runs_together = min(n_runs, max(1, budgets.sums_budget(shape.channels) // run_bytes))
    # Runs share boundaries: there is one before every layer, within it, and after the last.
    n_boundaries = min(2 * n_runs_together, 2 * shape.layers + 1)
    budget = count_positions(min(token_budget, BATCH // shape.channels), n_boundaries)
    n_positions = _batch_positions(budget, line_length, n_lines)
    converted = 3 * shape.channels * DOUBLE
    position_bytes = n_boundaries * shape.stream() + max(shape.passing(line_length), converted)
    return n_runs_together * run_bytes + n_positions * position_bytes


def fit_peak_bytes(
    shape: Shape, token_budget: int, line_length: int, n_lines: int, n_runs: int = 1
) -> int:
    """Bytes of patches with their second pass.

    First the sums, then the matrices of one decomposition together with the other sums.
    """
    return max(
        moment_bytes(shape, token_budget, line_length, n_lines, n_runs),
        budgets.fit_bytes(shape.channels, n_runs),
    )


def waiting_patch_bytes(shape: Shape, n_patches: int) -> int:
    """Bytes of patches that wait for their passes in a search; what is more waits in a file."""
    return min(budgets.PATCH_BYTES, n_patches * shape.channels**2 * FLOAT)


def healing_bytes(
    shape: Shape,
    n_layers: int,
    line_length: int,
    n_lines: int,
    is_distilled: bool,
    max_bytes: float,
) -> int:
    """Bytes of a training step.

    n_layers: Layers of the model that is trained.
    n_lines: Lines of a step.
    max_bytes: Most bytes of the parts in which a step runs, unless a single line needs more.
    """
    position_bytes = trained_position_bytes(shape, n_layers, is_distilled)
    max_positions = int(min(max_bytes // position_bytes, line_length * n_lines))
    n_positions = _batch_positions(max_positions, line_length, n_lines)
    chunk = 0
    if is_distilled:
        chunk = 4 * FLOAT * min(n_positions * shape.vocabulary, _LOGIT_CHUNK)
    return round(n_positions * position_bytes) + chunk


def trained_position_bytes(shape: Shape, n_layers: int, is_distilled: bool) -> float:
    """Bytes of a trained position: what the backward pass of the layers needs, and the logits."""
    layer_numbers = n_layers * (5.25 * shape.inner + 8.6 * shape.channels)
    n_logits = 4 if is_distilled else 3
    # Norms and losses keep float32 in addition to narrower weights: in bfloat16 a step needs three
    # quarters of this.
    return max(shape.size, FLOAT) * (layer_numbers + n_logits * shape.vocabulary)


def optimizer_bytes(size: int) -> float:
    """Bytes in addition to a trained number of `size` bytes.

    Its gradient and Adam's two moments in float32, a copy of its best value, and a float32 copy for
    the steps if the number is narrower.
    """
    master = FLOAT if size < FLOAT else 0
    return 3 * FLOAT + size + master


def full_training_bytes(n_parameters: int, size: int) -> float:
    """Bytes of all weights of a model, `size` bytes each, and of what their steps keep.

    They are not shared with the base model.
    """
    return n_parameters * (size + optimizer_bytes(size))


def benchmark_bytes(shape: Shape, line_length: int, n_lines: int, n_total: int) -> int:
    """Bytes of the log-likelihoods of `n_lines` lines at a time, out of `n_total`.

    Logits, log-probabilities, and those of the last batch.
    """
    n_arrays = 3 if n_lines < n_total else 2
    logits = n_arrays * shape.vocabulary * shape.size
    return line_length * n_lines * max(shape.passing(line_length), logits)


def cache_bytes(shape: Shape, line_length: int, n_lines: int) -> int:
    """Bytes of the keys and values of `n_lines` lines."""
    return n_lines * line_length * shape.layers * shape.cached * shape.size


def writing_bytes(shape: Shape, prompt_length: int, answer_length: int, n_texts: int) -> int:
    """Bytes of writing answers to `n_texts` prompts at a time, with a cache.

    Each step copies the cache of one layer after the other into a longer one. The prompts pass
    through the layers before; then each step has the logits of one position, also in float32, with
    their scores.
    """
    cache = cache_bytes(shape, prompt_length + answer_length, n_texts)
    reading = n_texts * prompt_length * shape.passing(prompt_length)
    logits = n_texts * shape.vocabulary * (shape.size + 2 * FLOAT)
    return cache + max(reading, cache // shape.layers + logits)


def _largest(config: Any, name: str) -> int:
    """The largest value under a name in a configuration, or those of its layers; 0 if none."""
    is_heterogeneous = getattr(config, "is_heterogeneous", False)
    config_holders = config.per_layer_config if is_heterogeneous else [config]
    layer_values = [0]
    for holder in config_holders:
        value = getattr(holder, name, None) or 0
        layer_values += value if isinstance(value, (list, tuple)) else [value]
    return int(max(layer_values))


def _batch_positions(budget: int, line_length: int, n_lines: int) -> int:
    """Positions of the largest batch that the budget allows; it has at least one line."""
    return line_length * min(n_lines, max(1, budget // line_length))


def largest_token_budget(available_bytes: int, predict_bytes: Callable[[int], int]) -> int:
    """The most tokens whose prediction is within `available_bytes`, at least LEAST_BUDGET."""
    max_tokens = LEAST_BUDGET
    while predict_bytes(2 * max_tokens) <= available_bytes:
        max_tokens *= 2
    step = max_tokens
    while step := step // 2:
        if predict_bytes(max_tokens + step) <= available_bytes:
            max_tokens += step
    return max_tokens
