"""The numbers that are read off a pass on its device, and handed to the host in one piece.

To hand out a number, a GPU must first finish all its earlier work. So a pass asks once, at its end: tokens, positions
of answers and the parts of a sample are tensors here too, and nothing is done line by line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lamina.engine.packing import Batch, Places

OUTPUT_METRICS = (
    "output_cosine",
    "output_norm",
    "output_js",
    "output_kl",
    "output_tv",
    "output_flips",
)

# Numbers of one stream's logits that are read at a time: on a CPU what its caches hold, so that each step of the
# arithmetic finds there what the step before has written; elsewhere enough to keep a device busy.
CACHED, STREAMED = 1 << 19, 1 << 23
_LEAST = 1e-38  # below which p log p is 0 in float32


@dataclass(frozen=True)
class Readings:
    """Numbers of one pass, on the host, in float64: by candidate, and what `moved` gives by observation.

    `outputs` are sums of OUTPUT_METRICS over the scored tokens of each run of places of one sample. A place that
    several choices share predicts a token of each and counts once for each: so a sum does not depend on how rows are
    packed.
    """

    scores: dict[Any, np.ndarray]  # log-likelihood of each scored token, (tokens,)
    hits: dict[Any, np.ndarray]  # whether it was the likeliest
    outputs: dict[Any, np.ndarray]  # (metrics, runs); empty where outputs are not compared
    starts: np.ndarray  # the first place of each run, (runs,)
    moved: dict[Any, np.ndarray]  # (2, lines)


def moved(batch: Batch, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Distance between two streams (lines, T, C): (2, lines); NaN for a line without one.

    Block influence, 1 - cos averaged over a sample's tokens [arXiv 2605.14075, eq. 2], and the angle at its last token
    over π [arXiv 2403.17887, eq. 6].
    """
    stream, cosine = batch.stream.to(before.device), cosine_similarity(before, after)
    mean = (1 - cosine).masked_fill(~stream, 0).sum(-1) / stream.sum(-1)
    last = (stream * torch.arange(stream.shape[1], device=stream.device)).argmax(-1, keepdim=True)
    angle = cosine.gather(-1, last)[:, 0].clamp(-1, 1).arccos() / torch.pi
    return torch.stack([mean, angle])


def read(
    batch: Batch,
    places: Places,
    parts: Iterable[torch.Tensor],
    leaves: Mapping[Any, int],
    observed: Mapping[Any, torch.Tensor],
    base: int | None,
) -> Readings:
    """The readings of logits, which come in `parts` (streams, some places, V) in the order of the places.

    `leaves` says in which stream each candidate arrived; `base` is that of the unpruned model, against which the output
    metrics are taken, or None to leave them out. `observed` are results of `moved`.
    """
    samples = np.array([batch.lines[number].sample for number in places.line])
    first = np.r_[True, samples[1:] != samples[:-1]]
    run = np.cumsum(first) - 1
    # Scored tokens by place, so that those of a part of the logits stand together.
    order = np.argsort(places.at, kind="stable")
    sorted_at = places.at[order]
    # How many tokens a place predicts: one of each choice whose rows share it.
    indices = np.concatenate([sorted_at, places.targets[order], run, np.bincount(places.at)])
    sizes = [len(order)] * 2 + [len(run)] * 2
    at, targets, run_of_place, tokens = (
        torch.from_numpy(indices).to(batch.tokens.device).split(sizes)
    )
    streams = sorted(set(leaves.values()))
    taken: list[_Taken] = []
    place = 0
    for logits in parts:
        start, end = np.searchsorted(sorted_at, [place, place + logits.shape[1]])
        there = at[start:end] - place
        taken.append(_take(logits, streams, base, there, targets[start:end]))
        place += logits.shape[1]
    scores = torch.cat([part.scores for part in taken], dim=1).double()
    hits = torch.cat([part.hits for part in taken], dim=1).double()
    found = [*scores, *hits]
    if base is not None:
        distances = torch.cat([part.distances for part in taken], dim=2).double()
        run_of_place = run_of_place.to(distances.device)
        for of_stream in distances * tokens.to(distances.device):
            sums = of_stream.new_zeros(len(OUTPUT_METRICS), int(run[-1]) + 1)
            found.append(sums.index_add_(1, run_of_place, of_stream))
    found += [distance.to(scores.device).double() for distance in observed.values()]
    numbers = torch.cat([part.flatten() for part in found]).cpu().numpy()
    pieces = np.split(numbers, np.cumsum([part.numel() for part in found])[:-1])
    arrays = [piece.reshape(part.shape) for piece, part in zip(pieces, found, strict=True)]
    count = len(streams)
    for array in arrays[: 2 * count]:
        array[order] = array.copy()
    number = {name: streams.index(leaf) for name, leaf in leaves.items()}
    behind = arrays[2 * count :]
    return Readings(
        {name: arrays[at] for name, at in number.items()},
        {name: arrays[count + at] for name, at in number.items()},
        {name: behind[at] for name, at in number.items()} if base is not None else {},
        np.flatnonzero(first),
        dict(zip(observed, behind[0 if base is None else count :], strict=True)),
    )


@dataclass(frozen=True)
class _Taken:
    """What is read off a part of the logits, for each stream."""

    scores: torch.Tensor  # log-likelihood of each scored token, (streams, tokens)
    hits: torch.Tensor  # whether it was the likeliest, (streams, tokens)
    distances: torch.Tensor  # from the base, (streams, metrics, places); not defined without a base


def _take(
    logits: torch.Tensor,
    streams: Sequence[int],
    base: int | None,
    at: torch.Tensor,
    targets: torch.Tensor,
) -> _Taken:
    """Read the scored tokens `targets` at the places `at` of logits (streams, places, V), one stream at a time."""
    on = logits.device
    at = at.to(on)
    targets = targets.to(on)
    count, width = logits.shape[1:]
    shape = (len(streams), count)
    normalisers = torch.empty(shape, dtype=torch.float32, device=on)
    likeliest = torch.empty(shape, dtype=torch.int64, device=on)
    distances = torch.empty((len(streams), len(OUTPUT_METRICS), count), device=on)
    step = max(1, (CACHED if on.type == "cpu" else STREAMED) // width)
    for first in range(0, count, step):
        rows = slice(first, first + step)
        reference = None if base is None else _Output(logits[base, rows])
        for number, stream in enumerate(streams):
            one = _Output(logits[stream, rows])
            normalisers[number, rows] = one.normaliser
            likeliest[number, rows] = one.likeliest
            if reference is not None:
                distances[number, :, rows] = _distances(reference, one)
    of_targets = [logits[stream, at, targets].float() for stream in streams]
    scores = torch.stack(of_targets) - normalisers[:, at]
    return _Taken(scores, likeliest[:, at] == targets, distances)


class _Output:
    """Some places of one stream: `logits` and probabilities `p` (places, V) in float32, and what is taken of them."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits.float()
        largest, self.likeliest = self.logits.max(-1)
        self.p = torch.sub(self.logits, largest[:, None]).exp_()
        total = self.p.sum(-1)
        self.normaliser = largest + total.log()
        self.p /= total[:, None]

    @cached_property
    def negative_entropy(self) -> torch.Tensor:
        """Σ p log p, (places,): log p is the logit less one number per place, so no array of logarithms is needed."""
        return (self.p * self.logits).sum(-1) - self.normaliser

    @cached_property
    def length(self) -> torch.Tensor:
        """The norm of the logits, (places,)."""
        return self.logits.norm(dim=-1)


def _distances(base: _Output, other: _Output) -> torch.Tensor:
    """OUTPUT_METRICS of each place, (metrics, places). One array (places, V) takes all products in turn."""
    product = torch.mul(base.p, other.logits)
    kl = base.negative_entropy - product.sum(-1) + other.normaliser
    tv = torch.sub(base.p, other.p, out=product).abs_().sum(-1) / 2
    middle = torch.add(base.p, other.p).mul_(0.5)
    torch.clamp(middle, min=_LEAST, out=product).log_()
    js = (base.negative_entropy + other.negative_entropy) / 2 - product.mul_(middle).sum(-1)
    cosine = torch.mul(base.logits, other.logits, out=product).sum(-1) / (
        base.length * other.length
    ).clamp_min(1e-30)
    norm = torch.sub(base.logits, other.logits, out=product).norm(dim=-1)
    flips = (
        (base.likeliest != other.likeliest).float().where(other.normaliser.isfinite(), torch.nan)
    )
    return torch.stack(
        [(1 - cosine).clamp_min(0), norm, js.clamp_min(0), kl.clamp_min(0), tv, flips]
    )


def cosine_similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine over the last (channel) dimension, in float32 or better: (…, C), (…, C) to (…)."""
    a, b = a.float(), b.float()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)
