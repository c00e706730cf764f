"""From logits and streams to the numbers of a sweep, one per candidate and sample."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lamina.data.calibrations import Sample
from lamina.sweep.packing import Batch, scored_positions

# How a candidate is called in a session: a unit's text, or the candidate itself.
Name = Any

OUTPUT_METRICS = ("output_cosine", "output_norm", "output_js", "output_kl", "output_tv", "output_flips")


class Scores:
    """Everything measured in one session, as arrays over (names, rows) and (names, samples).

    `names` are the candidates' (a sweep's: the units, and `none`, the model before any further removal). A row is one
    scored continuation; `offsets[s]` is the first row of sample s. `scored` says which samples a candidate answered,
    `seen` also where its unit was only observed.
    """

    def __init__(self, samples: Sequence[Sample], names: Sequence[Name] = ()) -> None:
        self.names: list[Name] = []
        self.index: dict[Name, int] = {}
        self.samples = list(samples)
        self.offsets = np.cumsum([0, *(len(sample.rows) for sample in samples)])
        shape, per_sample = (0, int(self.offsets[-1])), (0, len(self.samples))
        self.loglikelihood = np.zeros(shape)
        self.hits = np.zeros(shape, dtype=np.int64)
        self.last_hit = np.zeros(shape, dtype=bool)
        self.output = {metric: np.zeros(per_sample) for metric in OUTPUT_METRICS}
        self.output_count = np.zeros(per_sample)
        self.scored = np.zeros(per_sample, dtype=bool)
        self.seen = np.zeros(per_sample, dtype=bool)
        self.cosine = np.zeros(per_sample)
        self.angular_last = np.zeros(per_sample)
        self.add(names)

    def add(self, names: Iterable[Name]) -> None:
        """Make room for names that are not there yet."""
        new = [name for name in dict.fromkeys(names) if name not in self.index]
        self.index |= {name: number for number, name in enumerate(new, start=len(self.names))}
        self.names += new

        def grown(array: np.ndarray, filler: float = 0) -> np.ndarray:
            return np.concatenate([array, np.full((len(new), array.shape[1]), filler, dtype=array.dtype)])

        for name in ("hits", "last_hit", "output_count", "scored", "seen"):
            setattr(self, name, grown(getattr(self, name)))
        for name in ("loglikelihood", "cosine", "angular_last"):
            setattr(self, name, grown(getattr(self, name), np.nan))
        self.output = {metric: grown(values) for metric, values in self.output.items()}

    def observe(self, batch: Batch, name: Name, before: torch.Tensor, after: torch.Tensor) -> None:
        """Distance that a unit moves the stream: `before` and `after` of shape (lines, T, C).

        Block influence, 1 - cos averaged over a sample's tokens [arXiv 2605.14075, eq. 2], and the angle at its last
        token over π [arXiv 2403.17887, eq. 6].
        """
        place, cosine = self.index[name], cosine_similarity(before, after)
        for number, line in enumerate(batch.lines):
            if line.stream:
                values = cosine[number, list(line.stream)]
                self.seen[place, line.sample] = True
                self.cosine[place, line.sample] = _or_infinite(float((1 - values).mean()))
                angle = float(values[-1].clamp(-1, 1).arccos() / torch.pi)
                self.angular_last[place, line.sample] = _or_infinite(angle)

    def score(self, batch: Batch, streams: Mapping[Name, int], logits: torch.Tensor, base: int | None) -> None:
        """Take in logits of shape (streams, positions, V) at `scored_positions` of each line, lines in order.

        `streams` says where each candidate arrived; `base` is the stream of the unpruned model, against which the
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
        likeliest = logits.argmax(-1)
        token_hits = (likeliest[:, where] == wanted).cpu().numpy()
        units = np.array([self.index[name] for name in streams])
        places = np.array(list(streams.values()))
        row_ids, first = np.unique(rows, return_index=True)
        order = np.argsort(first)
        row_ids, first = row_ids[order], first[order]
        cells = np.ix_(units, row_ids)
        numbers = [line.sample for line in batch.lines]
        self.seen[units[:, None], numbers] = self.scored[units[:, None], numbers] = True
        self.loglikelihood[cells] = np.add.reduceat(token_scores[places], first, axis=1)
        self.hits[cells] = np.add.reduceat(token_hits[places].astype(np.int64), first, axis=1)
        last = np.append(first[1:], len(rows)) - 1
        self.last_hit[cells] = token_hits[places][:, last]
        if base is not None:
            samples = np.array([batch.lines[number].sample for number, _ in place])
            self._compare(logits, normaliser, likeliest, base, units, places, samples)

    def _compare(
        self,
        logits: torch.Tensor,
        normaliser: torch.Tensor,
        likeliest: torch.Tensor,
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
            norm, tv = (reference - other).norm(dim=-1), (p - q).norm(p=1, dim=-1) / 2
            flips = (likeliest[base] != likeliest[stream]).float().where(one.isfinite(), torch.nan)
            values = torch.stack([(1 - cosine).clamp_min(0), norm, js.clamp_min(0), kl.clamp_min(0), tv, flips])
            sums = np.add.reduceat(values.double().cpu().numpy(), starts, axis=1)
            # The lines of a sample whose rows share nothing need not be neighbours, so it may be there more than once.
            for metric, value in zip(OUTPUT_METRICS, sums, strict=True):
                np.add.at(self.output[metric][unit], samples[starts], value)
            np.add.at(self.output_count[unit], samples[starts], np.diff(np.append(starts, len(samples))))

    def not_numbers(self, name: Name) -> bool:
        """Whether any score of a candidate is NaN."""
        number = self.index[name]
        scored = np.repeat(self.scored[number], np.diff(self.offsets))
        return bool(np.isnan(self.loglikelihood[number, scored]).any())

    def rows(self, units: Iterable[Name]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys) for the given units, on the samples that each of them saw."""
        records = []
        for unit in units:
            for position in np.flatnonzero(self.seen[self.index[unit]]).tolist():
                records.append({"unit": unit, "sample": self.samples[position].index, **self.sample(unit, position)})
        return records

    def sample(self, name: Name, position: int) -> dict[str, Any]:
        """What was measured of one candidate on the sample at a position, as columns of table `sweeps`.

        What is not a finite number is a wrong answer, an infinite loss and an infinite distance: null is left to what
        was not measured.
        """
        unit, sample = self.index[name], self.samples[position]
        row: dict[str, Any] = {
            "cosine": or_null(self.cosine[unit, position]),
            "angular_last": or_null(self.angular_last[unit, position]),
            "n_tokens": len(sample.rows[sample.gold].continuation),
        }
        if not self.scored[unit, position]:
            return row
        scores = self.loglikelihood[unit, self.offsets[position] : self.offsets[position + 1]]
        gold = -np.inf if np.isnan(scores).any() else scores[sample.gold]
        row["nll"] = float(-gold)
        if sample.kind == "choices":
            row["correct_norm"] = bool(self.correct([unit], position, True)[0])
            length = [row.characters for row in sample.rows]
            for column, each in (("gold_margin", scores), ("gold_margin_norm", scores / length)):
                lead = each[sample.gold] - np.delete(each, sample.gold).max()
                row[column] = float(lead) if np.isfinite(gold) else -np.inf
        row["correct"] = bool(self.correct([unit], position, False)[0])
        count = self.output_count[unit, position]
        if count:
            row |= {metric: _or_infinite(self.output[metric][unit, position] / count) for metric in OUTPUT_METRICS}
        return row

    def correct(self, numbers: Sequence[int], position: int, normalised: bool) -> np.ndarray:
        """Whether each candidate (by number) answers the sample at a position right, (candidates,) boolean.

        `normalised` divides a choice's log-likelihood by its length, which other kinds of samples do not have. An
        answer is wrong unless all choices have scores and the gold one's is finite.
        """
        sample, start = self.samples[position], self.offsets[position]
        scores = self.loglikelihood[numbers, start : self.offsets[position + 1]]
        told = np.isfinite(scores[:, sample.gold]) & ~np.isnan(scores).any(axis=1)
        if sample.kind == "text":
            return told & self.last_hit[numbers, start]
        if sample.kind != "choices":
            return told & (self.hits[numbers, start] == len(sample.rows[0].continuation))
        length = np.array([float(row.characters) for row in sample.rows]) if normalised else 1.0
        return told & ((scores / length).argmax(axis=1) == sample.gold)


def cosine_similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cosine over the last (channel) dimension, in float32 or better: (…, C), (…, C) to (…)."""
    a, b = a.float(), b.float()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)


def or_null(value: float) -> float | None:
    """A number, and None for NaN: null is what was not measured."""
    return None if np.isnan(value) else float(value)


def _or_infinite(value: float) -> float:
    return float(value) if np.isfinite(value) else np.inf
