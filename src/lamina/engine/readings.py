"""Reads log-likelihoods and distances off a pass on its device, and copies them to the host once.

A GPU must finish all queued work before it can return a number. So a pass synchronises once, at its
end. Scored tokens, their positions and the runs of positions of a sample are tensors too, and
nothing is done line by line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lamina.engine.packing import PackedBatch, ScoredTokens

OUTPUT_METRICS = (
    "output_cosine",
    "output_norm",
    "output_js",
    "output_kl",
    "output_tv",
    "output_flips",
)
"""Distances of a model's logits from the base model's, in the order of their tensors here."""

CACHED = 1 << 19
"""Logits of one stream that are read at a time on a CPU.

They fit into its caches, so each step of the arithmetic finds the results of the last one there.
"""
STREAMED = 1 << 23
"""The same on other devices: enough to keep them busy."""

LEAST_PROBABILITY = 1e-38
"""Smaller probabilities are raised to this in log p, because p log p is negligible there."""
LEAST_NORM = 1e-30


@dataclass(frozen=True)
class Readings:
    """The numbers of one pass, on the host, in float64; the first three by candidate.

    A run is a sequence of scored positions of one sample. Several choices may share a position,
    which then counts once for each token that it predicts. So sums over a run do not depend on how
    rows are packed.
    """

    logprobs: dict[Any, np.ndarray]
    """Log-likelihood of each scored token, (tokens,)."""
    hits: dict[Any, np.ndarray]
    """1 where the scored token was the likeliest, else 0, (tokens,)."""
    output_sums: dict[Any, np.ndarray]
    """Sums of OUTPUT_METRICS over runs, (metrics, runs); empty where outputs are not compared."""
    run_starts: np.ndarray
    """The number of the first position of each run, (runs,)."""
    stream_distances: dict[Any, np.ndarray]
    """Results of `compare_streams` by observation, (2, lines)."""


def compare_streams(batch: PackedBatch, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Two distances between streams (lines, T, C): (2, lines); NaN for a line without gold text.

    The first is block influence, 1 - cos averaged over a sample's tokens [arXiv 2605.14075, eq. 2],
    the second the angle at its last token over π [arXiv 2403.17887, eq. 6].
    """
    is_gold_text = batch.is_gold_text.to(before.device)
    cosine = cosine_similarity(before, after)
    block_influence = (1 - cosine).masked_fill(~is_gold_text, 0).sum(-1) / is_gold_text.sum(-1)

    indices = torch.arange(is_gold_text.shape[1], device=is_gold_text.device)
    last_index = (is_gold_text * indices).argmax(-1, keepdim=True)
    last_cosine = cosine.gather(-1, last_index)[:, 0]
    angle = last_cosine.clamp(-1, 1).arccos() / torch.pi
    return torch.stack([block_influence, angle])


def read_logits(
    batch: PackedBatch,
    scored: ScoredTokens,
    logit_parts: Iterable[torch.Tensor],
    stream_by_candidate: Mapping[Any, int],
    stream_distances: Mapping[Any, torch.Tensor],
    base_stream: int | None,
) -> Readings:
    """Read the numbers of a pass off its logits.

    logit_parts: (streams, some positions, V), in the order of the positions of `scored`.
    stream_by_candidate: The stream in which each candidate arrived.
    stream_distances: Results of `compare_streams`, by observation.
    base_stream: The stream of the base model, the reference of OUTPUT_METRICS; None to skip them.
    """
    token_order = _TokenOrder.of(batch, scored)
    streams = sorted(set(stream_by_candidate.values()))
    parts = _read_parts(token_order, logit_parts, streams, base_stream)

    logprobs = torch.cat([part.logprobs for part in parts], dim=1).double()
    is_likeliest = torch.cat([part.is_likeliest for part in parts], dim=1).double()
    output_sums: list[torch.Tensor] = []
    if base_stream is not None:
        distances = torch.cat([part.distances for part in parts], dim=2).double()
        output_sums = token_order.sum_runs(distances)
    observed_distances = [
        distance.to(logprobs.device).double() for distance in stream_distances.values()
    ]
    host_logprobs, host_hits, host_sums, host_observed = _transfer(
        [list(logprobs), list(is_likeliest), output_sums, observed_distances]
    )

    observed_by_name = dict(zip(stream_distances, host_observed, strict=True))
    pass_readings = Readings({}, {}, {}, token_order.run_starts, observed_by_name)
    for candidate, stream in stream_by_candidate.items():
        stream_index = streams.index(stream)
        pass_readings.logprobs[candidate] = token_order.restore(host_logprobs[stream_index])
        pass_readings.hits[candidate] = token_order.restore(host_hits[stream_index])
        if base_stream is not None:
            pass_readings.output_sums[candidate] = host_sums[stream_index]
    return pass_readings


@dataclass(frozen=True)
class _TokenOrder:
    """The scored tokens of a batch, sorted so that each part of the logits has a range of them."""

    order: np.ndarray
    """Indices that sort the scored tokens, (tokens,)."""
    sorted_positions: np.ndarray
    """The number of the position that predicts each sorted token, on the host, (tokens,)."""
    run_starts: np.ndarray
    """The number of the first position of each run, (runs,)."""
    token_positions: torch.Tensor
    """`sorted_positions` on the device."""
    target_ids: torch.Tensor
    """The ids of the sorted tokens, on the device, (tokens,)."""
    position_runs: torch.Tensor
    """The run of each position, on the device, (positions,)."""
    position_counts: torch.Tensor
    """How many tokens each position predicts, on the device, (positions,)."""

    @classmethod
    def of(cls, batch: PackedBatch, scored: ScoredTokens) -> "_TokenOrder":
        """The order of a batch's scored tokens, sent to the device in one transfer."""
        position_samples = np.array(
            [batch.lines[line].sample_index for line in scored.position_lines]
        )
        starts_run = np.r_[True, position_samples[1:] != position_samples[:-1]]
        position_runs = np.cumsum(starts_run) - 1
        token_order = np.argsort(scored.token_positions, kind="stable")
        sorted_positions = scored.token_positions[token_order]
        position_counts = np.bincount(scored.token_positions)

        host_arrays = [
            sorted_positions,
            scored.target_ids[token_order],
            position_runs,
            position_counts,
        ]
        sizes = [len(array) for array in host_arrays]
        device_numbers = torch.from_numpy(np.concatenate(host_arrays)).to(batch.token_ids.device)
        return cls(
            token_order, sorted_positions, np.flatnonzero(starts_run), *device_numbers.split(sizes)
        )

    def sum_runs(self, distances: torch.Tensor) -> list[torch.Tensor]:
        """Sum (streams, metrics, positions) over runs: (metrics, runs) of each stream."""
        position_runs = self.position_runs.to(distances.device)
        weighted = distances * self.position_counts.to(distances.device)
        sums: list[torch.Tensor] = []
        for stream_distances in weighted:
            zeros = stream_distances.new_zeros(len(OUTPUT_METRICS), len(self.run_starts))
            sums.append(zeros.index_add_(1, position_runs, stream_distances))
        return sums

    def restore(self, sorted_values: np.ndarray) -> np.ndarray:
        """Put values of the sorted tokens back into the order of the batch."""
        values = np.empty_like(sorted_values)
        values[self.order] = sorted_values
        return values


@dataclass(frozen=True)
class _PartReadings:
    """What is read off a part of the logits, for each stream."""

    logprobs: torch.Tensor
    """Log-probability of each scored token, (streams, tokens)."""
    is_likeliest: torch.Tensor
    """Whether the scored token has the largest logit, (streams, tokens)."""
    distances: torch.Tensor
    """OUTPUT_METRICS, (streams, metrics, positions); undefined without a base model."""


def _read_parts(
    order: _TokenOrder,
    logit_parts: Iterable[torch.Tensor],
    streams: Sequence[int],
    base_stream: int | None,
) -> list[_PartReadings]:
    """The readings of each part of the logits."""
    part_readings: list[_PartReadings] = []
    first_position = 0
    for logits in logit_parts:
        end_position = first_position + logits.shape[1]
        first_token, end_token = np.searchsorted(
            order.sorted_positions, [first_position, end_position]
        )
        token_positions = order.token_positions[first_token:end_token] - first_position
        target_ids = order.target_ids[first_token:end_token]
        part_readings.append(_read_part(logits, streams, base_stream, token_positions, target_ids))
        first_position = end_position
    return part_readings


def _read_part(
    logits: torch.Tensor,
    streams: Sequence[int],
    base_stream: int | None,
    token_positions: torch.Tensor,
    target_ids: torch.Tensor,
) -> _PartReadings:
    """Read scored tokens off logits (streams, positions, V), a stream and a chunk at a time."""
    device = logits.device
    token_positions = token_positions.to(device)
    target_ids = target_ids.to(device)
    n_positions, vocabulary = logits.shape[1:]
    shape = (len(streams), n_positions)
    normalisers = torch.empty(shape, dtype=torch.float32, device=device)
    likeliest_ids = torch.empty(shape, dtype=torch.int64, device=device)
    distances = torch.empty((len(streams), len(OUTPUT_METRICS), n_positions), device=device)

    chunk_numbers = CACHED if device.type == "cpu" else STREAMED
    chunk_positions = max(1, chunk_numbers // vocabulary)
    for start in range(0, n_positions, chunk_positions):
        chunk = slice(start, start + chunk_positions)
        base = None if base_stream is None else _Output(logits[base_stream, chunk])
        for stream_number, stream in enumerate(streams):
            output = _Output(logits[stream, chunk])
            normalisers[stream_number, chunk] = output.normaliser
            likeliest_ids[stream_number, chunk] = output.likeliest_id
            if base is not None:
                distances[stream_number, :, chunk] = _output_distances(base, output)

    target_logits = [logits[stream, token_positions, target_ids].float() for stream in streams]
    logprobs = torch.stack(target_logits) - normalisers[:, token_positions]
    is_likeliest = likeliest_ids[:, token_positions] == target_ids
    return _PartReadings(logprobs, is_likeliest, distances)


def _transfer(groups: Sequence[Sequence[torch.Tensor]]) -> list[list[np.ndarray]]:
    """Copy groups of tensors of one device and dtype to the host, in one transfer."""
    tensors = [tensor for group in groups for tensor in group]
    host_numbers = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
    host_groups: list[list[np.ndarray]] = []
    start = 0
    for group in groups:
        arrays: list[np.ndarray] = []
        for tensor in group:
            end = start + tensor.numel()
            arrays.append(host_numbers[start:end].reshape(tensor.shape))
            start = end
        host_groups.append(arrays)
    return host_groups


class _Output:
    """Some positions of one stream: `logits` and probabilities `p`, (positions, V) in float32."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits.float()
        largest, self.likeliest_id = self.logits.max(-1)
        self.p = torch.sub(self.logits, largest[:, None]).exp_()
        total = self.p.sum(-1)
        self.normaliser = largest + total.log()
        self.p /= total[:, None]

    @cached_property
    def negative_entropy(self) -> torch.Tensor:
        """Σ p log p, (positions,).

        log p is the logit minus the normaliser of its position, so no array of logarithms is
        needed.
        """
        return (self.p * self.logits).sum(-1) - self.normaliser

    @cached_property
    def norm(self) -> torch.Tensor:
        """The norm of the logits, (positions,)."""
        return self.logits.norm(dim=-1)


def _output_distances(base: _Output, other: _Output) -> torch.Tensor:
    """OUTPUT_METRICS of each position, (metrics, positions).

    One buffer (positions, V) holds all products in turn, to save memory.
    """
    product_buffer = torch.mul(base.p, other.logits)
    kl_divergence = base.negative_entropy - product_buffer.sum(-1) + other.normaliser

    torch.sub(base.p, other.p, out=product_buffer)
    tv_distance = product_buffer.abs_().sum(-1) / 2

    mean_p = torch.add(base.p, other.p).mul_(0.5)
    torch.clamp(mean_p, min=LEAST_PROBABILITY, out=product_buffer).log_()
    mean_entropy = (base.negative_entropy + other.negative_entropy) / 2
    js_divergence = mean_entropy - product_buffer.mul_(mean_p).sum(-1)

    torch.mul(base.logits, other.logits, out=product_buffer)
    logit_cosine = product_buffer.sum(-1) / (base.norm * other.norm).clamp_min(LEAST_NORM)

    torch.sub(base.logits, other.logits, out=product_buffer)
    difference_norm = product_buffer.norm(dim=-1)

    is_flipped = (base.likeliest_id != other.likeliest_id).float()
    flip_rate = is_flipped.where(other.normaliser.isfinite(), torch.nan)
    return torch.stack(
        [
            (1 - logit_cosine).clamp_min(0),
            difference_norm,
            js_divergence.clamp_min(0),
            kl_divergence.clamp_min(0),
            tv_distance,
            flip_rate,
        ]
    )


def cosine_similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine over the last (channel) dimension, in float32 or better: (…, C), (…, C) to (…)."""
    a = a.float()
    b = b.float()
    norm_product = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / norm_product.clamp_min(torch.finfo(a.dtype).tiny)
