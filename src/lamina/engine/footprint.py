"""Predicts the memory that a stage needs beyond the process and the weights, in bytes.

The prediction depends on shapes and on the token budget. Each function counts what is in memory at
the peak of its stage. `make plan` prints the predictions, and `tokens: auto` is the largest budget
whose prediction fits.

In all functions, `token_budget` is the budget of a pass in token positions, `line_length` the
number of tokens of a line, and `n_lines` the number of lines.
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
# Values of streams and of logits that consumers convert to another dtype at a time.
_STREAM_CHUNK = 1 << 21
_LOGIT_CHUNK = 1 << 23


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine the memory of a pass."""

    layers: int
    """Number L of layers."""
    channels: int
    """Number C of channels."""
    inner: int
    """Width of an MLP."""
    vocabulary: int
    """Size V of the vocabulary."""
    size: int
    """Bytes per number."""
    cached: int = 0
    """Numbers in the KV cache of one token in one layer."""

    @classmethod
    def of(cls, config: Any, size: int) -> "Shape":
        """The shape of a transformers configuration.

        An MLP of unknown width is assumed to be 4 C wide. If a width differs between layers, the
        largest counts.
        """
        text = config.get_text_config(decoder=True)
        channels = text.hidden_size
        inner = _largest(text, "intermediate_size") or _largest(text, "ffn_dim") or 4 * channels
        cached = max(count_cached_numbers(text))
        return cls(text.num_hidden_layers, channels, inner, text.vocab_size, size, cached)

    def passing(self, line_length: int) -> int:
        """Bytes of a position that runs through a layer, in a line of `line_length` tokens.

        The peak is in the MLP. It holds the layer's input, the stream after attention, the outputs
        of the norm and of the MLP, three inner activations, and the position's row of the attention
        mask, boolean and additive.
        """
        return self.size * (4 * self.channels + 3 * self.inner + line_length) + line_length

    def stream(self) -> int:
        """Bytes of a position of a stream that is kept."""
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
    """Bytes of the largest pass of a sweep.

    Each pass carries the current model, from which all other streams fork. The largest pass need
    not be that of the longest line: a shorter line may carry more streams.

    lengths: Lengths of the lines.
    n_scored: The largest number of scored positions of a line.
    n_streams: The number of streams of the whole sweep.
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

    It has at least one line, and more as long as all streams fit. The number of lines may be a
    fraction, because short lines fill the rest of the budget after long ones.
    """
    cost = line_length + n_scored * shape.vocabulary / (4 * shape.channels)
    n_together = min(n_lines, max(1, token_budget / n_streams / cost))
    # As in `group_candidates`, groups are as even as possible and each carries the current model.
    max_forks = max(1, int(token_budget / (line_length * n_together)) - 1)
    n_forks = n_streams - 1
    n_groups = max(1, -(-n_forks // max_forks))
    n_carried = 1 + -(-n_forks // n_groups)

    # In each layer at least one of n streams does not run: the one without that layer.
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
    # With a large vocabulary, only some positions have logits at a time. The head's input is kept.
    all_logits = stream_logits * n_carried
    held_logits = min(all_logits, max(LOGIT_NUMBERS, shape.vocabulary * n_carried))
    head_input = 0.0
    if held_logits < all_logits:
        head_input = n_positions * n_carried * shape.stream()

    # Streams are read one by one, some positions at a time. Reading a stream takes its
    # probabilities. A comparison with the base takes those of both, their mean and a buffer for
    # products. Narrower logits are copied to float32 first.
    is_compared = n_streams > 1
    n_arrays = 4 if is_compared else 1
    if shape.size < FLOAT:
        n_arrays += 2 if is_compared else 1
    read_logits = min(stream_logits, _LOGIT_CHUNK)
    return held_logits * shape.size + head_input + read_logits * n_arrays * FLOAT


def moment_bytes(
    shape: Shape, token_budget: int, line_length: int, n_lines: int, n_runs: int
) -> int:
    """Bytes of collecting the sums for patches.

    Four C × C matrices per run of a turn, the streams of a batch, and three vectors per token in
    float64.
    """
    run_bytes = budgets.sums_bytes(1, 1, shape.channels)
    n_runs_together = min(n_runs, max(1, budgets.sums_budget(shape.channels) // run_bytes))
    # Runs share boundaries: one before each layer, one within it, and one after the last layer.
    n_boundaries = min(2 * n_runs_together, 2 * shape.layers + 1)
    budget = count_positions(min(token_budget, BATCH // shape.channels), n_boundaries)
    n_positions = _batch_positions(budget, line_length, n_lines)
    converted = 3 * shape.channels * DOUBLE
    position_bytes = n_boundaries * shape.stream() + max(shape.passing(line_length), converted)
    return n_runs_together * run_bytes + n_positions * position_bytes


def fit_peak_bytes(
    shape: Shape, token_budget: int, line_length: int, n_lines: int, n_runs: int = 1
) -> int:
    """Bytes of fitting patches: the larger of its two phases.

    The first collects the sums. The second needs the matrices of one fit together with the sums.
    """
    return max(
        moment_bytes(shape, token_budget, line_length, n_lines, n_runs),
        budgets.fit_bytes(shape.channels, n_runs),
    )


def waiting_patch_bytes(shape: Shape, n_patches: int) -> int:
    """Bytes of patches that wait in memory for their passes in a search; others wait in a file."""
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
    max_bytes: The limit of a micro-batch of the step; a single line may exceed it.
    """
    position_bytes = trained_position_bytes(shape, n_layers, is_distilled)
    max_positions = int(min(max_bytes // position_bytes, line_length * n_lines))
    n_positions = _batch_positions(max_positions, line_length, n_lines)
    chunk = 0
    if is_distilled:
        chunk = 4 * FLOAT * min(n_positions * shape.vocabulary, _LOGIT_CHUNK)
    return round(n_positions * position_bytes) + chunk


def trained_position_bytes(shape: Shape, n_layers: int, is_distilled: bool) -> float:
    """Bytes of a position in training: the activations for the backward pass, and the logits."""
    layer_numbers = n_layers * (5.25 * shape.inner + 8.6 * shape.channels)
    n_logits = 4 if is_distilled else 3
    # Norms and losses stay in float32 when weights are narrower: a bfloat16 step needs three
    # quarters of this.
    return max(shape.size, FLOAT) * (layer_numbers + n_logits * shape.vocabulary)


def optimizer_bytes(size: int) -> float:
    """Bytes of training state for a parameter of `size` bytes.

    The gradient and Adam's two moments in float32, a copy of the best value, and a float32 master
    copy if the parameter is narrower.
    """
    master = FLOAT if size < FLOAT else 0
    return 3 * FLOAT + size + master


def full_training_bytes(n_parameters: int, size: int) -> float:
    """Bytes of a model's weights, `size` bytes each, and of their training state.

    The weights are not shared with the base model.
    """
    return n_parameters * (size + optimizer_bytes(size))


def benchmark_bytes(shape: Shape, line_length: int, n_lines: int, n_total: int) -> int:
    """Bytes of the log-likelihoods of `n_lines` lines at a time, out of `n_total`.

    Logits, log-probabilities, and the logits of the batch before if there is one.
    """
    n_arrays = 3 if n_lines < n_total else 2
    logits = n_arrays * shape.vocabulary * shape.size
    return line_length * n_lines * max(shape.passing(line_length), logits)


def cache_bytes(shape: Shape, line_length: int, n_lines: int) -> int:
    """Bytes of the keys and values of `n_lines` lines."""
    return n_lines * line_length * shape.layers * shape.cached * shape.size


def writing_bytes(shape: Shape, prompt_length: int, answer_length: int, n_texts: int) -> int:
    """Bytes of generating answers to `n_texts` prompts at a time, with a KV cache.

    The peak is either the prefill of the prompts or a decoding step. A decoding step copies the
    cache into a longer one, layer by layer. It holds the logits of one position, their float32 copy
    and their scores.
    """
    cache = cache_bytes(shape, prompt_length + answer_length, n_texts)
    reading = n_texts * prompt_length * shape.passing(prompt_length)
    logits = n_texts * shape.vocabulary * (shape.size + 2 * FLOAT)
    return cache + max(reading, cache // shape.layers + logits)


def _largest(config: Any, name: str) -> int:
    """The largest value of `name` in a configuration or in those of its layers; 0 if none."""
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
    """The largest token budget whose prediction fits `available_bytes`, at least LEAST_BUDGET."""
    max_tokens = LEAST_BUDGET
    while predict_bytes(2 * max_tokens) <= available_bytes:
        max_tokens *= 2
    step = max_tokens
    while step := step // 2:
        if predict_bytes(max_tokens + step) <= available_bytes:
            max_tokens += step
    return max_tokens
