"""Samples packed into lines: the context that a document's rows share runs once, the rest of each row beside it.

A line is one batch row of the model's input. Its first segment (number 0) is the longest common token prefix of the
rows; every other segment is the rest of one row, sees the prefix and itself only, and counts its positions on from the
prefix. So each token's logits are those of its own row evaluated alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lamina.data.calibrations import Sample

# A line shorter than this share of its batch's longest would be mostly padding.
SHORT = 0.85
ALIGNED = 8


@dataclass(frozen=True)
class Answer:
    """Where a row is scored: logits at line indices `at` predict the tokens `targets`, in order."""

    row: int
    at: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """One packed model input. `stream` lists the indices of context + gold continuation, each token once, in order."""

    sample: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    segments: tuple[int, ...]
    answers: tuple[Answer, ...]
    stream: tuple[int, ...]


def pack(number: int, sample: Sample, share: bool = True) -> list[Line]:
    """Lines of the `number`-th sample: one if the context is shared, else one per row.

    A row's input ends before its last token, which is predicted and never read; only the gold row keeps it, where the
    model's context has room, since the stream metrics run over context and gold continuation complete.
    """
    inputs = [
        sample.sequence() if index == sample.gold else row.context + row.continuation[:-1]
        for index, row in enumerate(sample.rows)
    ]
    if not share:
        lines = []
        for index, tokens in enumerate(inputs):
            places = list(range(len(tokens)))
            seen = tuple(places) if index == sample.gold else ()
            answer = _answer(index, sample, places)
            lines.append(Line(number, tokens, tuple(places), (0,) * len(tokens), (answer,), seen))
        return lines
    prefix = _common_prefix(inputs)
    packed, positions, segments = list(inputs[0][:prefix]), list(range(prefix)), [0] * prefix
    answers: list[Answer] = []
    stream: tuple[int, ...] = ()
    for index, row_tokens in enumerate(inputs):
        start = len(packed)
        rest = row_tokens[prefix:]
        packed += rest
        positions += range(prefix, prefix + len(rest))
        segments += [index + 1] * len(rest)
        places = [*range(prefix), *range(start, start + len(rest))]
        answers.append(_answer(index, sample, places))
        if index == sample.gold:
            stream = tuple(places)
    return [Line(number, tuple(packed), tuple(positions), tuple(segments), tuple(answers), stream)]


def _answer(index: int, sample: Sample, places: Sequence[int]) -> Answer:
    row = sample.rows[index]
    first = len(row.context) - 1
    return Answer(index, tuple(places[first : first + len(row.continuation)]), row.continuation)


def _common_prefix(rows: Sequence[tuple[int, ...]]) -> int:
    length = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return length


@dataclass(frozen=True)
class Places:
    """Where a batch is scored, as numbers on the host."""

    line: np.ndarray  # of each place whose logits are needed, (places,)
    position: np.ndarray
    at: np.ndarray  # for each scored token the place that predicts it, (tokens,)
    targets: np.ndarray  # the token
    rows: np.ndarray  # its row of scores


def places(lines: Sequence[Line], offsets: np.ndarray) -> Places:
    """The places of lines in order, `scored_positions` of each; `offsets[s]` is the first row of sample s."""
    scored = [(n, at) for n, line in enumerate(lines) for at in scored_positions(line)]
    number = {place: count for count, place in enumerate(scored)}
    tokens = [
        (number[n, at], target, int(offsets[line.sample]) + answer.row)
        for n, line in enumerate(lines)
        for answer in line.answers
        for at, target in zip(answer.at, answer.targets, strict=True)
    ]
    return Places(*np.array(scored).T, *np.array(tokens).T)


@dataclass(frozen=True)
class Batch:
    """Lines padded to one length T: `tokens`, `positions`, `segments` of shape (lines, T); padding has segment -1.

    `stream` (lines, T) is True at the tokens of context and gold continuation.
    """

    lines: tuple[Line, ...]
    tokens: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    stream: torch.Tensor

    @property
    def plain(self) -> bool:
        """Whether every line is one text from its start, for which causal attention needs no mask."""
        return all(max(line.segments) == 0 for line in self.lines)

    def visible(self, window: int | None = None) -> torch.Tensor:
        """Which token may attend to which, (lines, T, T) boolean; `window` limits how far back in positions.

        A padding token sees itself only, so that no row of the softmax is empty.
        """
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        back = self.positions[:, :, None] - self.positions[:, None, :]
        seen = ((key == 0) | (key == query)) & (query >= 0) & (key >= 0) & (back >= 0)
        if window is not None:
            seen &= back < window
        return seen | torch.eye(self.tokens.shape[1], dtype=torch.bool, device=self.tokens.device)


def scored_positions(line: Line) -> list[int]:
    """Line indices whose logits are needed, each once, in order."""
    return sorted({at for answer in line.answers for at in answer.at})


def batches(
    lines: Sequence[Line], budget: float, head_cost: float, mixed: bool = True
) -> Iterator[tuple[Line, ...]]:
    """Groups of lines of similar length whose cost, in tokens, stays under `budget`; a single line may exceed it.

    Without `mixed` the lines of a group have one length. A scored position costs `head_cost` tokens more, for its
    logits. The longest lines come first, so that a batch too large for the machine fails at once.
    """
    order = sorted(lines, key=lambda line: (-len(line.tokens), line.sample))
    start = 0
    while start < len(order):
        length, chosen, scored = (
            len(order[start].tokens),
            [order[start]],
            len(scored_positions(order[start])),
        )
        for line in order[start + 1 :]:
            scored += len(scored_positions(line))
            if length * (len(chosen) + 1) + scored * head_cost > budget or not (
                mixed or len(line.tokens) == length
            ):
                break
            # Much shorter lines wait for a batch of their own, unless this one would stay small.
            if len(line.tokens) < SHORT * length and length * len(chosen) > budget / 16:
                break
            chosen.append(line)
        yield tuple(chosen)
        start += len(chosen)


def collate(lines: tuple[Line, ...], device: torch.device, mixed: bool = True) -> Batch:
    """Pad `lines` on the right into one batch, which goes to the device at once.

    On a device with tensor cores the length is a multiple of 8: they compute in such steps, and attention copies a mask
    whose rows are not aligned. Lines that are not `mixed` have one length and keep it.
    """
    step = ALIGNED if device.type == "cuda" and mixed else 1
    length = -(-max(len(line.tokens) for line in lines) // step) * step
    numbers = np.zeros((4, len(lines), length), dtype=np.int64)
    numbers[2] = -1
    for number, line in enumerate(lines):
        width = len(line.tokens)
        numbers[:3, number, :width] = line.tokens, line.positions, line.segments
        numbers[3, number, list(line.stream)] = 1
    tokens, positions, segments, stream = torch.from_numpy(numbers).to(device)
    return Batch(lines, tokens, positions, segments, stream.bool())
