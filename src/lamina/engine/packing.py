"""Samples packed into lines: the context that the rows of a document share runs once.

A line is one row of the model's input. Its first segment (number 0) is the longest common token
prefix of the sample's rows. Every other segment is the rest of one row: it sees the prefix and
itself only, and its positions continue those of the prefix. So each token gets the same logits as
if its row ran alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lamina.data.calibrations import Sample

SHORT = 0.85
"""A line shorter than this share of the longest line in its batch would mean much padding."""
SMALL_BATCH = 256
"""Token positions up to which lines of any length share a batch: small batches waste more time than
padding does."""
ALIGNMENT = 8
PADDING_SEGMENT = -1


@dataclass(frozen=True)
class ScoredRow:
    """Where a row of a sample is scored in a line."""

    row_index: int
    line_indices: tuple[int, ...]
    """The logits at these indices of the line predict `target_ids`, in order."""
    target_ids: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """One packed model input."""

    sample_index: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    segments: tuple[int, ...]
    scored_rows: tuple[ScoredRow, ...]
    gold_indices: tuple[int, ...]
    """Line indices of the context and the gold continuation, each token once, in order."""


def pack_sample(sample_index: int, sample: Sample, shares_context: bool = True) -> list[Line]:
    """Lines of a sample: one in all if `shares_context`, else one per row.

    A row's input ends before its last token, which is predicted and never read. Only the gold row
    keeps it, if the model's context has room, because the stream metrics cover the complete context
    and gold continuation.
    """
    row_inputs: list[tuple[int, ...]] = []
    for row_index, row in enumerate(sample.rows):
        is_gold = row_index == sample.gold
        row_inputs.append(sample.sequence() if is_gold else row.context + row.continuation[:-1])
    if shares_context:
        return [_pack_shared(sample_index, sample, row_inputs)]
    return [
        _pack_row(sample_index, sample, row_index, tokens)
        for row_index, tokens in enumerate(row_inputs)
    ]


def _pack_row(sample_index: int, sample: Sample, row_index: int, tokens: tuple[int, ...]) -> Line:
    """A line of one row."""
    indices = tuple(range(len(tokens)))
    scored_row = _locate_row(row_index, sample, indices)
    gold_indices = indices if row_index == sample.gold else ()
    segments = (0,) * len(tokens)
    return Line(sample_index, tokens, indices, segments, (scored_row,), gold_indices)


def _pack_shared(sample_index: int, sample: Sample, row_inputs: Sequence[tuple[int, ...]]) -> Line:
    """One line of all rows, with their common prefix once."""
    n_prefix = _count_common_prefix(row_inputs)
    tokens = list(row_inputs[0][:n_prefix])
    positions = list(range(n_prefix))
    segments = [0] * n_prefix
    scored_rows: list[ScoredRow] = []
    gold_indices: tuple[int, ...] = ()
    for row_index, row_tokens in enumerate(row_inputs):
        rest_start = len(tokens)
        row_rest = row_tokens[n_prefix:]
        tokens += row_rest
        positions += range(n_prefix, n_prefix + len(row_rest))
        segments += [row_index + 1] * len(row_rest)

        line_indices = (*range(n_prefix), *range(rest_start, rest_start + len(row_rest)))
        scored_rows.append(_locate_row(row_index, sample, line_indices))
        if row_index == sample.gold:
            gold_indices = line_indices
    return Line(
        sample_index,
        tuple(tokens),
        tuple(positions),
        tuple(segments),
        tuple(scored_rows),
        gold_indices,
    )


def _locate_row(row_index: int, sample: Sample, line_indices: Sequence[int]) -> ScoredRow:
    """Where a row is scored, given the indices of its tokens in the line."""
    row = sample.rows[row_index]
    first_index = len(row.context) - 1
    predicting_indices = line_indices[first_index : first_index + len(row.continuation)]
    return ScoredRow(row_index, tuple(predicting_indices), row.continuation)


def _count_common_prefix(rows: Sequence[tuple[int, ...]]) -> int:
    """The length of the longest common token prefix."""
    n_common = 0
    for tokens in zip(*rows, strict=False):
        if len(set(tokens)) > 1:
            break
        n_common += 1
    return n_common


def scored_positions(line: Line) -> list[int]:
    """Line indices whose logits are needed, each once, in order."""
    indices: set[int] = set()
    for scored_row in line.scored_rows:
        indices.update(scored_row.line_indices)
    return sorted(indices)


@dataclass(frozen=True)
class ScoredTokens:
    """Where a batch is scored, on the host.

    Each position whose logits are needed appears once, in the order of the lines. It may predict
    several tokens: one for each choice whose row shares it.
    """

    position_lines: np.ndarray
    """The line of each position, (positions,)."""
    position_indices: np.ndarray
    """The index of each position in its line, (positions,)."""
    token_positions: np.ndarray
    """The number of the position that predicts each scored token, (tokens,)."""
    target_ids: np.ndarray
    """The ids of the scored tokens, (tokens,)."""
    token_rows: np.ndarray
    """The row of scores that each token belongs to, (tokens,)."""


def locate_scored_tokens(lines: Sequence[Line], row_offsets: np.ndarray) -> ScoredTokens:
    """Where lines are scored; `row_offsets[s]` is the first row of scores of sample s."""
    position_numbers: dict[tuple[int, int], int] = {}
    for line_number, line in enumerate(lines):
        for line_index in scored_positions(line):
            position_numbers[line_number, line_index] = len(position_numbers)

    token_facts: list[tuple[int, int, int]] = []
    for line_number, line in enumerate(lines):
        first_row = int(row_offsets[line.sample_index])
        for scored_row in line.scored_rows:
            score_row = first_row + scored_row.row_index
            for line_index, target_id in zip(
                scored_row.line_indices, scored_row.target_ids, strict=True
            ):
                token_facts.append(
                    (position_numbers[line_number, line_index], target_id, score_row)
                )

    position_lines, position_indices = np.array(list(position_numbers)).T
    token_positions, target_ids, token_rows = np.array(token_facts).T
    return ScoredTokens(position_lines, position_indices, token_positions, target_ids, token_rows)


@dataclass(frozen=True)
class PackedBatch:
    """Lines padded on the right to one length T; all tensors are (lines, T)."""

    lines: tuple[Line, ...]
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: torch.Tensor
    """Padding has PADDING_SEGMENT."""
    is_gold_text: torch.Tensor
    """True at the tokens of the context and the gold continuation."""

    @property
    def has_plain_lines(self) -> bool:
        """Whether every line is one text from its start, so that causal attention needs no mask."""
        return all(max(line.segments) == 0 for line in self.lines)

    def visible_tokens(self, window: int | None = None) -> torch.Tensor:
        """Which token may attend to which, (lines, T, T) boolean.

        A padding token sees itself only, so that no row of the softmax is empty.

        window: How far back a token looks, in positions.
        """
        query_segments = self.segments[:, :, None]
        key_segments = self.segments[:, None, :]
        distances = self.position_ids[:, :, None] - self.position_ids[:, None, :]
        visible = (
            ((key_segments == 0) | (key_segments == query_segments))
            & (query_segments >= 0)
            & (key_segments >= 0)
            & (distances >= 0)
        )
        if window is not None:
            visible &= distances < window
        n_tokens = self.token_ids.shape[1]
        return visible | torch.eye(n_tokens, dtype=torch.bool, device=self.token_ids.device)


def group_lines(
    lines: Sequence[Line], max_positions: float, head_cost: float, mixes_lengths: bool = True
) -> Iterator[tuple[Line, ...]]:
    """Group lines of similar length within a budget of cost; a single line may exceed it.

    The longest lines come first, so that a batch too large for the machine fails at once.

    max_positions: The budget, in token positions.
    head_cost: What the logits of a scored position cost, in token positions.
    mixes_lengths: Whether the lines of a group may have different lengths.
    """
    ordered_lines = sorted(lines, key=lambda line: (-len(line.tokens), line.sample_index))
    start = 0
    while start < len(ordered_lines):
        n_lines = _count_fitting_lines(
            ordered_lines[start:], max_positions, head_cost, mixes_lengths
        )
        yield tuple(ordered_lines[start : start + n_lines])
        start += n_lines


def _count_fitting_lines(
    lines: Sequence[Line], max_positions: float, head_cost: float, mixes_lengths: bool
) -> int:
    """How many of the first lines make a group; the first one is the longest."""
    longest_line = len(lines[0].tokens)
    n_scored = len(scored_positions(lines[0]))
    n_lines = 1
    for line in lines[1:]:
        n_scored += len(scored_positions(line))
        if longest_line * (n_lines + 1) + n_scored * head_cost > max_positions:
            break
        if not mixes_lengths and len(line.tokens) != longest_line:
            break
        # Much shorter lines wait for a batch of their own, unless this one would stay small.
        is_short = len(line.tokens) < SHORT * longest_line
        if is_short and longest_line * n_lines > min(max_positions / 16, SMALL_BATCH):
            break
        n_lines += 1
    return n_lines


def collate_lines(
    lines: tuple[Line, ...], device: torch.device, mixes_lengths: bool = True
) -> PackedBatch:
    """Pad lines into one batch, which goes to the device in one transfer.

    On a device with tensor cores the length is a multiple of 8: they compute in such steps, and
    attention copies a mask whose rows are not aligned. Without `mixes_lengths`, all lines have the
    same length and keep it.
    """
    alignment = ALIGNMENT if device.type == "cuda" and mixes_lengths else 1
    longest_line = max(len(line.tokens) for line in lines)
    padded_length = -(-longest_line // alignment) * alignment

    batch_numbers = np.zeros((4, len(lines), padded_length), dtype=np.int64)
    token_ids, position_ids, segments, is_gold_text = batch_numbers
    segments[:] = PADDING_SEGMENT
    for line_number, line in enumerate(lines):
        n_tokens = len(line.tokens)
        token_ids[line_number, :n_tokens] = line.tokens
        position_ids[line_number, :n_tokens] = line.positions
        segments[line_number, :n_tokens] = line.segments
        is_gold_text[line_number, list(line.gold_indices)] = 1
    device_numbers = torch.from_numpy(batch_numbers).to(device)
    return PackedBatch(
        lines, device_numbers[0], device_numbers[1], device_numbers[2], device_numbers[3].bool()
    )
