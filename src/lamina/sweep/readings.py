"""What is read off a pass on the device it ran on, and handed to the host in one piece.

A GPU that is asked for a number stops until all that was asked of it before is done. So a pass asks once, at its end:
tokens, positions of answers and the parts of a sample are tensors here too, and nothing is done line by line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lamina.sweep.packing import Batch, Places

OUTPUT_METRICS = ("output_cosine", "output_norm", "output_js", "output_kl", "output_tv", "output_flips")


@dataclass(frozen=True)
class Readings:
    """Numbers of one pass, on the host, in float64.

    Attributes
    ----------
    scores, hits : by candidate, of each scored token its log-likelihood and whether it was the likeliest, (tokens,).
    outputs : by candidate, sums of OUTPUT_METRICS over the scored tokens of each run of places of one sample,
        (metrics, runs); empty where outputs are not compared. A place that several choices share predicts a token of
        each and counts once for each: so a sum does not depend on how rows are packed.
    starts : the first place of each run, (runs,).
    moved : by observation, 1 - cos averaged over each line's stream and the angle at its last token over π, (2, lines).
    """

    scores: dict[Any, np.ndarray]
    hits: dict[Any, np.ndarray]
    outputs: dict[Any, np.ndarray]
    starts: np.ndarray
    moved: dict[Any, np.ndarray]


def moved(batch: Batch, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Distance between two streams (lines, T, C): (2, lines), as `Readings.moved` has it; NaN for a line without one.

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
    logits: torch.Tensor,
    leaves: Mapping[Any, int],
    observed: Mapping[Any, torch.Tensor],
    base: int | None,
) -> Readings:
    """What stands in logits (streams, places, V), one stream at a time.

    `leaves` says in which stream each candidate arrived; `base` is that of the unpruned model, against which the output
    metrics are taken, or None to leave them out. `observed` are results of `moved`.
    """
    samples = np.array([batch.lines[number].sample for number in places.line])
    first = np.r_[True, samples[1:] != samples[:-1]]
    run = np.cumsum(first) - 1
    # How many tokens a place predicts: one of each choice whose rows share it.
    told = np.concatenate([places.at, places.targets, run, np.bincount(places.at)])
    at, targets, part, tokens = torch.from_numpy(told).to(logits.device).split([len(places.at)] * 2 + [len(run)] * 2)
    reference = None if base is None else _Reference(logits[base].float())
    streams = sorted(set(leaves.values()))
    scores, hits, outputs = [], [], []
    for stream in streams:
        one = _Reference(logits[stream].float())
        scores.append((one.logits[at, targets] - one.normaliser[at]).double())
        hits.append((one.likeliest[at] == targets).double())
        if reference is not None:
            sums = torch.zeros(len(OUTPUT_METRICS), int(run[-1]) + 1, dtype=torch.float64, device=logits.device)
            outputs.append(sums.index_add_(1, part, _distances(reference, one).double() * tokens))
    parts = [*scores, *hits, *outputs, *(found.to(logits.device).double() for found in observed.values())]
    found = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    pieces = np.split(found, np.cumsum([part.numel() for part in parts])[:-1])
    arrays = [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)]
    number = {name: streams.index(leaf) for name, leaf in leaves.items()}
    count = len(streams)
    behind = arrays[2 * count :]
    return Readings(
        {name: arrays[at] for name, at in number.items()},
        {name: arrays[count + at] for name, at in number.items()},
        {name: behind[at] for name, at in number.items()} if reference is not None else {},
        np.flatnonzero(first),
        dict(zip(observed, behind[len(outputs) :], strict=True)),
    )


class _Reference:
    """One stream's output: `logits` (places, V) in float32, and what is taken of them once."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits, self.normaliser, self.likeliest = logits, logits.logsumexp(-1), logits.argmax(-1)


def _distances(base: _Reference, other: _Reference) -> torch.Tensor:
    """OUTPUT_METRICS of each place, (metrics, places)."""
    reference, zero = base.logits, base.normaliser
    p = (reference - zero[:, None]).exp()
    negative_entropy = (p * reference).sum(-1) - zero
    theirs, one = other.logits, other.normaliser
    # Sums of p·log q and q·log q need no array of logarithms: log q is the logit less one number per position.
    kl = negative_entropy - (p * theirs).sum(-1) + one
    q = (theirs - one[:, None]).exp()
    middle = (p + q) / 2
    js = (negative_entropy + (q * theirs).sum(-1) - one) / 2 - torch.xlogy(middle, middle).sum(-1)
    lengths = reference.norm(dim=-1) * theirs.norm(dim=-1)
    cosine = (reference * theirs).sum(-1) / lengths.clamp_min(1e-30)
    norm, tv = (reference - theirs).norm(dim=-1), (p - q).norm(p=1, dim=-1) / 2
    flips = (base.likeliest != other.likeliest).float().where(one.isfinite(), torch.nan)
    return torch.stack([(1 - cosine).clamp_min(0), norm, js.clamp_min(0), kl.clamp_min(0), tv, flips])


def cosine_similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine over the last (channel) dimension, in float32 or better: (…, C), (…, C) to (…)."""
    a, b = a.float(), b.float()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)
