"""From logits and streams to the numbers of a sweep, one per unit and sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lamina.data.calibrations import Sample
from lamina.sweep.packing import Batch, scored_positions

OUTPUT_METRICS = ("output_cosine", "output_norm", "output_js", "output_kl")


class Scores:
    """Everything measured in one sweep, as arrays over (units, rows) and (units, samples).

    `units` includes `none`, the model before any further removal. A row is one scored continuation; `offsets[s]` is the
    first row of sample s.
    """

    def __init__(self, units: Sequence[str], samples: Sequence[Sample]) -> None:
        self.units = list(units)
        self.index = {unit: number for number, unit in enumerate(self.units)}
        self.samples = list(samples)
        self.offsets = np.cumsum([0, *(len(sample.rows) for sample in samples)])
        shape = (len(self.units), int(self.offsets[-1]))
        self.loglikelihood = np.full(shape, np.nan)
        self.hits = np.zeros(shape, dtype=np.int64)
        self.last_hit = np.zeros(shape, dtype=bool)
        per_sample = (len(self.units), len(self.samples))
        self.output = {metric: np.zeros(per_sample) for metric in OUTPUT_METRICS}
        self.output_count = np.zeros(per_sample)
        self.seen = np.zeros(per_sample, dtype=bool)
        self.cosine = np.full(per_sample, np.nan)
        self.angular_last = np.full(per_sample, np.nan)

    def observe(self, batch: Batch, unit: str, before: torch.Tensor, after: torch.Tensor) -> None:
        """Distance that a unit moves the stream: `before` and `after` of shape (lines, T, C).

        Block influence, 1 - cos averaged over a sample's tokens [arXiv 2605.14075, eq. 2], and the angle at its last
        token over π [arXiv 2403.17887, eq. 6].
        """
        cosine = cosine_similarity(before, after)
        for number, line in enumerate(batch.lines):
            if line.stream:
                values = cosine[number, list(line.stream)]
                self.seen[self.index[unit], line.sample] = True
                self.cosine[self.index[unit], line.sample] = float((1 - values).mean())
                self.angular_last[self.index[unit], line.sample] = float(values[-1].clamp(-1, 1).arccos() / torch.pi)

    def score(self, batch: Batch, names: Sequence[str], logits: torch.Tensor, base: int | None) -> None:
        """Take in logits of shape (streams, positions, V) at `scored_positions` of each line, lines in order.

        `names[i]` is the unit that stream i lacks; `base` is the stream of the unpruned model, against which the
        output metrics are taken, or None to leave them out.
        """
        place: dict[tuple[int, int], int] = {}
        for number, line in enumerate(batch.lines):
            for position in scored_positions(line):
                place[number, position] = len(place)
        at: list[int] = []
        targets: list[int] = []
        rows: list[int] = []
        for number, line in enumerate(batch.lines):
            for answer in line.answers:
                at += [place[number, index] for index in answer.at]
                targets += answer.targets
                rows += [int(self.offsets[line.sample]) + answer.row] * len(answer.targets)
        logits = logits.float()
        where = torch.tensor(at, device=logits.device)
        wanted = torch.tensor(targets, device=logits.device)
        normaliser = logits.logsumexp(-1)
        token_scores = (logits[:, where, wanted] - normaliser[:, where]).double().cpu().numpy()
        token_hits = (logits.argmax(-1)[:, where] == wanted).cpu().numpy()
        units = np.array([self.index[name] for name in names if name in self.index])
        streams = np.array([i for i, name in enumerate(names) if name in self.index])
        row_ids, first = np.unique(rows, return_index=True)
        order = np.argsort(first)
        row_ids, first = row_ids[order], first[order]
        cells = np.ix_(units, row_ids)
        self.seen[units[:, None], [line.sample for line in batch.lines]] = True
        self.loglikelihood[cells] = np.add.reduceat(token_scores[streams], first, axis=1)
        self.hits[cells] = np.add.reduceat(token_hits[streams].astype(np.int64), first, axis=1)
        last = np.append(first[1:], len(rows)) - 1
        self.last_hit[cells] = token_hits[streams][:, last]
        if base is not None:
            samples = np.array([batch.lines[number].sample for number, _ in place])
            self._compare(logits, normaliser, base, units, streams, samples)

    def _compare(
        self,
        logits: torch.Tensor,
        normaliser: torch.Tensor,
        base: int,
        units: np.ndarray,
        streams: np.ndarray,
        samples: np.ndarray,
    ) -> None:
        """Distances of each stream's output to the base model's, summed over each sample's scored positions."""
        reference, zero = logits[base], normaliser[base]
        p = (reference - zero[:, None]).exp()
        negative_entropy = (p * reference).sum(-1) - zero
        length = reference.norm(dim=-1)
        starts = np.flatnonzero(np.r_[True, samples[1:] != samples[:-1]])
        for unit, stream in zip(units, streams, strict=True):
            other, one = logits[stream], normaliser[stream]
            # Sums of p·log q and q·log q need no array of logarithms: log q is the logit less one number per position.
            kl = negative_entropy - (p * other).sum(-1) + one
            q = (other - one[:, None]).exp()
            middle = (p + q) / 2
            js = (negative_entropy + (q * other).sum(-1) - one) / 2 - torch.xlogy(middle, middle).sum(-1)
            cosine = (reference * other).sum(-1) / (length * other.norm(dim=-1)).clamp_min(1e-30)
            values = torch.stack(
                [(1 - cosine).clamp_min(0), (reference - other).norm(dim=-1), js.clamp_min(0), kl.clamp_min(0)]
            )
            sums = np.add.reduceat(values.double().cpu().numpy(), starts, axis=1)
            for metric, value in zip(OUTPUT_METRICS, sums, strict=True):
                self.output[metric][unit, samples[starts]] += value
            self.output_count[unit, samples[starts]] += np.diff(np.append(starts, len(samples)))

    def rows_seen(self, unit: int) -> np.ndarray:
        """Which rows belong to samples that the unit with this number saw, (rows,) boolean."""
        return np.repeat(self.seen[unit], np.diff(self.offsets))

    def rows(self, units: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys) for the given units, on the samples that each of them saw."""
        records = []
        for unit in units:
            number = self.index[unit]
            for position in np.flatnonzero(self.seen[number]).tolist():
                records.append({"unit": unit, "sample": self.samples[position].index, **self.sample(unit, position)})
        return records

    def sample(self, unit: str, position: int) -> dict[str, Any]:
        """What was measured of one unit on the sample at a position, as columns of table `sweeps`."""
        return self._row(self.index[unit], position, self.samples[position])

    def _row(self, unit: int, position: int, sample: Sample) -> dict[str, Any]:
        row: dict[str, Any] = {
            "cosine": _finite(self.cosine[unit, position]),
            "angular_last": _finite(self.angular_last[unit, position]),
            "n_tokens": len(sample.rows[sample.gold].continuation),
        }
        scores = self.loglikelihood[unit, self.offsets[position] : self.offsets[position + 1]]
        if np.isnan(scores).all():
            return row
        gold = sample.gold
        row["nll"] = _finite(-scores[gold])
        if sample.kind == "choices":
            row["correct_norm"] = bool(self.correct([unit], position, True)[0])
            row["gold_margin"] = _finite(scores[gold] - np.delete(scores, gold).max())
        row["correct"] = bool(self.correct([unit], position, False)[0])
        count = self.output_count[unit, position]
        if count:
            row |= {metric: _finite(self.output[metric][unit, position] / count) for metric in OUTPUT_METRICS}
        return row

    def correct(self, units: Sequence[int], position: int, normalised: bool) -> np.ndarray:
        """Whether each unit (by number) leaves the sample at a position answered right, (units,) boolean.

        `normalised` divides a choice's log-likelihood by its length, which other kinds of samples do not have.
        """
        sample, start = self.samples[position], self.offsets[position]
        if sample.kind == "text":
            return self.last_hit[units, start]
        if sample.kind != "choices":
            return self.hits[units, start] == len(sample.rows[0].continuation)
        scores = self.loglikelihood[units, start : self.offsets[position + 1]]
        length = np.array([float(row.characters) for row in sample.rows]) if normalised else 1.0
        return (scores / length).argmax(axis=1) == sample.gold


def cosine_similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine over the last (channel) dimension, in float32 or better: (…, C), (…, C) to (…)."""
    a, b = a.float(), b.float()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
