"""Memory that a stage needs above process and weights, in bytes, predicted from shapes and the budget of tokens.

Each function counts what is in memory at the same time where its stage needs most. `make plan` prints it, and
`tokens: auto` is the largest budget whose prediction fits.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lamina.engine import budgets
from lamina.engine.budgets import LOGITS
from lamina.engine.moments import BATCH
from lamina.engine.taps import positions

FLOAT, DOUBLE = 4, 8
# Numbers that consumers of streams and of logits convert to another type at a time.
_STREAMS, _LOGITS = 1 << 21, 1 << 23


@dataclass(frozen=True)
class Shape:
    """The sizes that decide the memory of a pass: L, C, the widths of an MLP and of keys, V, bytes of a number."""

    layers: int
    channels: int
    inner: int
    keys: int
    vocabulary: int
    size: int

    @classmethod
    def of(cls, config: Any, size: int) -> "Shape":
        """The shape of a transformers configuration; an MLP of unknown width is taken to be 4 C wide.

        Without attention heads, keys are taken to be as wide as the stream. If a width differs from layer to layer, the
        largest counts.
        """
        text = config.get_text_config(decoder=True)
        channels = text.hidden_size
        heads = _largest(text, "num_attention_heads")
        inner = _largest(text, "intermediate_size") or _largest(text, "ffn_dim") or 4 * channels
        width = _largest(text, "head_dim") or (channels // heads if heads else 0)
        keys = width * (_largest(text, "num_key_value_heads") or heads) or channels
        return cls(text.num_hidden_layers, channels, inner, keys, text.vocab_size, size)

    def parameters(self, left: int) -> int:
        """Parameters of a model with `left` layers, at most: an MLP has three matrices, the head is not shared."""
        attention, mlp = (
            2 * self.channels * (self.channels + self.keys),
            3 * self.channels * self.inner,
        )
        return (
            left * (attention + mlp + 4 * self.channels) + (2 * self.vocabulary + 1) * self.channels
        )

    def passing(self, line: int) -> int:
        """Bytes of a position on its way through the layers, in a line of `line` tokens.

        The MLP needs most: what entered the layer, the stream behind its attention, the norm's output, and three inner
        activations; and the line's row of the mask, as a truth value and as a number.
        """
        return self.size * (4 * self.channels + 3 * self.inner + line) + line

    def stream(self) -> int:
        """Bytes of a position that is kept."""
        return self.channels * self.size


def capture(shape: Shape, tokens: int, line: int, lines: int) -> int:
    """Bytes of `streams.capture`: the streams at all boundaries, and three numbers for every pair and sample."""
    count = shape.layers + 1
    held = _batch(positions(tokens, count), line, lines)
    numbers = held * count * shape.channels
    # A chunk: gathered, stacked, and its magnitudes in float64.
    similarities = (2 * FLOAT + DOUBLE) * min(numbers, _STREAMS)
    return (
        numbers * shape.size
        + max(held * shape.passing(line), similarities)
        + 3 * DOUBLE * lines * count**2
    )


def sweep(
    shape: Shape, tokens: int, lengths: Collection[int], lines: int, scored: int, streams: int
) -> int:
    """Bytes of a pass of the engine over some of `lines` of these `lengths`, with up to `scored` logits positions each.

    The pass carries the current model, and all but one of the wanted `streams` fork off it. The widest pass need not be
    that of the longest line: a shorter line may carry more streams.
    """
    return round(
        max(_pass(shape, tokens, length, lines, min(scored, length), streams) for length in lengths)
    )


def _pass(shape: Shape, tokens: int, line: int, lines: int, scored: int, streams: int) -> float:
    """Bytes of a pass as `Session.measure` fills it: at least one line, and more while all streams have room.

    The number of lines is a fraction, because short lines fill the rest of the budget behind long ones.
    """
    cost = line + scored * shape.vocabulary / (4 * shape.channels)
    together = min(lines, max(1, tokens / streams / cost))
    # The groups are as even as `session.groups` makes them, with the current model in each.
    most = max(1, int(tokens / (line * together)) - 1)
    carried = 1 + -(-(streams - 1) // max(1, -(-(streams - 1) // most)))
    # Streams are read one after the other, some places at a time: in float32, with their exponentials, and for their
    # distance from the base with those of both, their mean, and the result of one more operation.
    arrays = (4 if streams > 1 else 1) + (2 if streams > 1 else 1) * (shape.size < FLOAT)
    numbers = together * scored * shape.vocabulary
    # Of a large vocabulary some places at a time, from what the head is given.
    whole = numbers * carried
    held = min(whole, max(LOGITS, shape.vocabulary * carried))
    entering = together * scored * carried * shape.stream() if held < whole else 0
    logits = held * shape.size + entering + min(numbers, _LOGITS) * arrays * FLOAT
    # A removal runs no layer of its own, so that in every layer one stream stands by.
    layers = line * (max(1, carried - 1) * shape.passing(line) + carried * shape.stream())
    return max(together * layers, logits)


def moments(shape: Shape, tokens: int, line: int, lines: int, runs: int) -> int:
    """Bytes of sums for patches: four matrices for each run of a turn, and two streams of a batch in float64."""
    matrices = budgets.sums_bytes(1, 1, shape.channels)
    runs = min(runs, max(1, budgets.sums_budget(shape.channels) // matrices))
    # Runs share boundaries: there is one before every layer, within it, and behind the last.
    kept = min(2 * runs, 2 * shape.layers + 1)
    held = _batch(positions(min(tokens, BATCH // shape.channels), kept), line, lines)
    return runs * matrices + held * (
        kept * shape.stream() + max(shape.passing(line), 3 * shape.channels * DOUBLE)
    )


def fit(shape: Shape, tokens: int, line: int, lines: int, runs: int = 1) -> int:
    """Bytes of patches with their second pass: sums, then the matrices of one decomposition beside the other sums."""
    return max(
        moments(shape, tokens, line, lines, runs),
        budgets.fitting(shape.channels, runs),
    )


def waiting(shape: Shape, patches: int) -> int:
    """Bytes of patches that wait for their passes in a search; what is more waits in a file."""
    return min(budgets.PATCHES, patches * shape.channels**2 * FLOAT)


def heal(
    shape: Shape, left: int, line: int, lines: int, distilled: bool, most: float = math.inf
) -> int:
    """Bytes of a training step on `lines` at a time, in parts of up to `most` bytes, with `left` layers."""
    needed = trained(shape, left, distilled)
    held = _batch(int(min(most // needed, line * lines)), line, lines)
    chunk = 4 * FLOAT * min(held * shape.vocabulary, _LOGITS) if distilled else 0
    return round(held * needed) + chunk


def trained(shape: Shape, left: int, distilled: bool) -> float:
    """Bytes of a trained position with `left` layers: what their backward pass needs, and the logits."""
    layers = left * (5.25 * shape.inner + 8.6 * shape.channels)
    # Norms and losses keep float32 beside narrower weights: in bfloat16 a step needs three quarters of this.
    return max(shape.size, FLOAT) * (layers + (4 if distilled else 3) * shape.vocabulary)


def stepped(size: int) -> float:
    """Bytes beside a trained number of `size` bytes: its gradient and Adam's two moments in float32, a copy of its best
    value, and a float32 copy for the steps if the number is narrower.
    """
    return 3 * FLOAT + size + (FLOAT if size < FLOAT else 0)


def full(shape: Shape, left: int) -> float:
    """Bytes of all weights of a model with `left` layers, not shared with the base, and of what their steps keep."""
    return shape.parameters(left) * (shape.size + stepped(shape.size))


def benchmark(shape: Shape, line: int, lines: int, every: int) -> int:
    """Bytes of log-likelihoods of `lines` of `every` at a time: logits, log-probabilities, those of the last batch."""
    alive = 3 if lines < every else 2
    return line * lines * max(shape.passing(line), alive * shape.vocabulary * shape.size)


def efficiency(shape: Shape, line: int, lines: int) -> int:
    """Bytes of `lines` prompts at a time, and of the keys and values that they leave."""
    # The caches of this prompt and of the last one, each twice: a growing cache leaves a hole in its old place.
    kept = 8 * shape.layers * shape.keys * shape.size
    return line * lines * (shape.passing(line) + kept)


def _largest(config: Any, name: str) -> int:
    """The largest value under a name in a configuration or in those of its layers; 0 if there is none."""
    holders = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    values = [getattr(holder, name, None) or 0 for holder in holders]
    return int(
        max(
            max(value, default=0) if isinstance(value, (list, tuple)) else value for value in values
        )
    )


def _batch(budget: int, line: int, lines: int) -> int:
    """Positions of the largest batch that the budget allows."""
    return line * min(lines, max(1, budget // line))


def budget(memory: int, predicted: Callable[[int], int], least: int = 64) -> int:
    """The most tokens whose prediction is at most `memory` bytes, at least `least`."""
    most = least
    while predicted(2 * most) <= memory:
        most *= 2
    step = most
    while step := step // 2:
        if predicted(most + step) <= memory:
            most += step
    return most
