"""Memory that a stage needs in addition to process and weights, in bytes.

It is predicted from shapes and the budget of tokens. Each function counts what is in memory at the
same time where its stage needs most. `make plan` prints it, and `tokens: auto` is the largest
budget whose prediction fits.

In all functions, `tokens` is the budget of a pass, `line` the tokens of a line, and `lines` how
many lines there are.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lamina.engine import budgets
from lamina.engine.budgets import LOGITS
from lamina.engine.moments import BATCH
from lamina.engine.taps import positions

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
    keys: int
    """Width of the keys of a layer, over all heads."""
    vocabulary: int
    """V"""
    size: int
    """Bytes of a number."""

    @classmethod
    def of(cls, config: Any, size: int) -> "Shape":
        """The shape of a transformers configuration.

        An MLP of unknown width is taken to be 4 C wide, keys without attention heads as wide as the
        stream. If a width differs from layer to layer, the largest counts.
        """
        text = config.get_text_config(decoder=True)
        channels = text.hidden_size
        inner = _largest(text, "intermediate_size") or _largest(text, "ffn_dim") or 4 * channels
        n_heads = _largest(text, "num_attention_heads")
        head_width = _largest(text, "head_dim")
        if not head_width and n_heads:
            head_width = channels // n_heads
        n_key_heads = _largest(text, "num_key_value_heads") or n_heads
        keys = head_width * n_key_heads or channels
        return cls(text.num_hidden_layers, channels, inner, keys, text.vocab_size, size)

    def parameters(self, left: int) -> int:
        """Parameters of a model with `left` layers, at most.

        An MLP has three matrices, and the head is not shared.
        """
        attention = 2 * self.channels * (self.channels + self.keys)
        mlp = 3 * self.channels * self.inner
        norms = 4 * self.channels
        embeddings = (2 * self.vocabulary + 1) * self.channels
        return left * (attention + mlp + norms) + embeddings

    def passing(self, line: int) -> int:
        """Bytes of a position on its way through the layers, in a line of `line` tokens.

        The MLP needs most: what entered the layer, the stream after its attention, the norm's
        output and its own, and three inner activations; and the line's row of the mask, as truth
        values and as numbers.
        """
        return self.size * (4 * self.channels + 3 * self.inner + line) + line

    def stream(self) -> int:
        """Bytes of a position that is kept."""
        return self.channels * self.size


def capture(shape: Shape, tokens: int, line: int, lines: int) -> int:
    """Bytes of `capture.capture`: all streams, and three numbers per pair and sample."""
    n_boundaries = shape.layers + 1
    n_positions = _batch_positions(positions(tokens, n_boundaries), line, lines)
    stream_numbers = n_positions * n_boundaries * shape.channels
    # A chunk: gathered, stacked, and its magnitudes in float64.
    chunk = (2 * FLOAT + DOUBLE) * min(stream_numbers, _STREAM_CHUNK)
    distances = 3 * DOUBLE * lines * n_boundaries**2
    return stream_numbers * shape.size + max(n_positions * shape.passing(line), chunk) + distances


def sweep(
    shape: Shape, tokens: int, lengths: Collection[int], lines: int, scored: int, streams: int
) -> int:
    """Bytes of a pass of the engine over some lines.

    The pass carries the current model, and all but one of the streams fork off it. The widest pass
    need not be that of the longest line: a shorter line may carry more streams.

    lengths: That lines have.
    scored: The most positions of a line whose logits are needed.
    streams: The most that are wanted.
    """
    needed = [
        _pass_bytes(shape, tokens, length, lines, min(scored, length), streams)
        for length in lengths
    ]
    return round(max(needed))


def _pass_bytes(
    shape: Shape, tokens: int, line: int, lines: int, scored: int, streams: int
) -> float:
    """Bytes of a pass as `Session.measure` fills it.

    It has at least one line, and more while all streams have room. The number of lines is a
    fraction, because short lines fill the rest of the budget after long ones.
    """
    cost = line + scored * shape.vocabulary / (4 * shape.channels)
    n_lines = min(lines, max(1, tokens / streams / cost))
    # The groups are as even as `session.groups` makes them, with the current model in each.
    max_forks = max(1, int(tokens / (line * n_lines)) - 1)
    n_forks = streams - 1
    n_groups = max(1, -(-n_forks // max_forks))
    n_carried = 1 + -(-n_forks // n_groups)

    # A removal runs no layer of its own, so that in every layer one stream stands by.
    running_bytes = max(1, n_carried - 1) * shape.passing(line)
    layer_bytes = line * (running_bytes + n_carried * shape.stream())
    logit_bytes = _logit_bytes(shape, n_lines * scored, n_carried, streams)
    return max(n_lines * layer_bytes, logit_bytes)


def _logit_bytes(shape: Shape, n_positions: float, n_carried: int, streams: int) -> float:
    """Bytes of the logits of a pass, and of what is computed from them.

    n_positions: Scored positions of each stream.
    n_carried: Streams of the pass.
    streams: Streams of all passes; a single one is not compared with another.
    """
    stream_logits = n_positions * shape.vocabulary
    # Of a large vocabulary some positions at a time, from what the head is given.
    all_logits = stream_logits * n_carried
    held_logits = min(all_logits, max(LOGITS, shape.vocabulary * n_carried))
    head_input = 0.0
    if held_logits < all_logits:
        head_input = n_positions * n_carried * shape.stream()

    # Streams are read one after the other, some positions at a time: in float32, with their
    # exponentials, and for their distance from the base with those of both, their mean, and the
    # result of one more operation.
    is_compared = streams > 1
    n_arrays = 4 if is_compared else 1
    if shape.size < FLOAT:
        n_arrays += 2 if is_compared else 1
    read_logits = min(stream_logits, _LOGIT_CHUNK)
    return held_logits * shape.size + head_input + read_logits * n_arrays * FLOAT


def moments(shape: Shape, tokens: int, line: int, lines: int, runs: int) -> int:
    """Bytes of sums for patches.

    Four matrices for each run of a turn, and two streams of a batch in float64.
    """
    run_bytes = budgets.sums_bytes(1, 1, shape.channels)
    n_runs = min(runs, max(1, budgets.sums_budget(shape.channels) // run_bytes))
    # Runs share boundaries: there is one before every layer, within it, and after the last.
    n_boundaries = min(2 * n_runs, 2 * shape.layers + 1)
    budget = positions(min(tokens, BATCH // shape.channels), n_boundaries)
    n_positions = _batch_positions(budget, line, lines)
    converted = 3 * shape.channels * DOUBLE
    position_bytes = n_boundaries * shape.stream() + max(shape.passing(line), converted)
    return n_runs * run_bytes + n_positions * position_bytes


def fit(shape: Shape, tokens: int, line: int, lines: int, runs: int = 1) -> int:
    """Bytes of patches with their second pass.

    First the sums, then the matrices of one decomposition together with the other sums.
    """
    return max(
        moments(shape, tokens, line, lines, runs),
        budgets.fitting(shape.channels, runs),
    )


def waiting(shape: Shape, patches: int) -> int:
    """Bytes of patches that wait for their passes in a search; what is more waits in a file."""
    return min(budgets.PATCHES, patches * shape.channels**2 * FLOAT)


def heal(shape: Shape, left: int, line: int, lines: int, distilled: bool, most: float) -> int:
    """Bytes of a training step.

    left: Layers of the model.
    lines: Those of a step.
    most: Bytes of the parts that it is run in, unless a single line needs more.
    """
    position_bytes = trained(shape, left, distilled)
    max_positions = int(min(most // position_bytes, line * lines))
    n_positions = _batch_positions(max_positions, line, lines)
    chunk = 0
    if distilled:
        chunk = 4 * FLOAT * min(n_positions * shape.vocabulary, _LOGIT_CHUNK)
    return round(n_positions * position_bytes) + chunk


def trained(shape: Shape, left: int, distilled: bool) -> float:
    """Bytes of a trained position: what the backward pass of `left` layers needs, and logits."""
    layer_numbers = left * (5.25 * shape.inner + 8.6 * shape.channels)
    n_logits = 4 if distilled else 3
    # Norms and losses keep float32 in addition to narrower weights: in bfloat16 a step needs three
    # quarters of this.
    return max(shape.size, FLOAT) * (layer_numbers + n_logits * shape.vocabulary)


def stepped(size: int) -> float:
    """Bytes in addition to a trained number of `size` bytes.

    Its gradient and Adam's two moments in float32, a copy of its best value, and a float32 copy for
    the steps if the number is narrower.
    """
    master = FLOAT if size < FLOAT else 0
    return 3 * FLOAT + size + master


def full(shape: Shape, left: int) -> float:
    """Bytes of all weights of a model with `left` layers, and of what their steps keep.

    They are not shared with the base model.
    """
    return shape.parameters(left) * (shape.size + stepped(shape.size))


def benchmark(shape: Shape, line: int, lines: int, every: int) -> int:
    """Bytes of the log-likelihoods of `lines` lines at a time, of `every` line that there is.

    Logits, log-probabilities, and those of the last batch.
    """
    n_arrays = 3 if lines < every else 2
    logits = n_arrays * shape.vocabulary * shape.size
    return line * lines * max(shape.passing(line), logits)


def efficiency(shape: Shape, line: int, lines: int) -> int:
    """Bytes of `lines` prompts at a time, and of the keys and values that they leave."""
    # The caches of this prompt and of the last one, each twice: a growing cache leaves a hole where
    # it was.
    caches = 8 * shape.layers * shape.keys * shape.size
    return line * lines * (shape.passing(line) + caches)


def _largest(config: Any, name: str) -> int:
    """The largest value under a name in a configuration, or those of its layers; 0 if none."""
    is_heterogeneous = getattr(config, "is_heterogeneous", False)
    holders = config.per_layer_config if is_heterogeneous else [config]
    values = [0]
    for holder in holders:
        value = getattr(holder, name, None) or 0
        values += value if isinstance(value, (list, tuple)) else [value]
    return int(max(values))


def _batch_positions(budget: int, line: int, lines: int) -> int:
    """Positions of the largest batch that the budget allows; it has at least one line."""
    return line * min(lines, max(1, budget // line))


def budget(memory: int, predicted: Callable[[int], int]) -> int:
    """The most tokens whose prediction is at most `memory` bytes, at least LEAST_BUDGET."""
    most = LEAST_BUDGET
    while predicted(2 * most) <= memory:
        most *= 2
    step = most
    while step := step // 2:
        if predicted(most + step) <= memory:
            most += step
    return most
