"""The readings of passes become the numbers of a sweep, one per candidate and sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina.data.calibrations import Sample
from lamina.engine.packing import Batch, Places
from lamina.engine.readings import OUTPUT_METRICS, Readings

# The name of a candidate in a session: a unit's text, or the candidate itself.
Name = Any


class Scores:
    """Everything measured in one session, as arrays over (names, rows) and (names, samples).

    `names` are those of candidates (in a sweep the units, and `none`, the model before any further removal). A row is
    one scored continuation; `offsets[s]` is the first row of sample s. `scored` says which samples a candidate
    answered; `seen` also counts samples on which its unit was only observed.
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
            return np.concatenate(
                [array, np.full((len(new), array.shape[1]), filler, dtype=array.dtype)]
            )

        for name in ("hits", "last_hit", "output_count", "scored", "seen"):
            setattr(self, name, grown(getattr(self, name)))
        for name in ("loglikelihood", "cosine", "angular_last"):
            setattr(self, name, grown(getattr(self, name), np.nan))
        self.output = {metric: grown(values) for metric, values in self.output.items()}

    def take(self, batch: Batch, places: Places, read: Readings) -> None:
        row_ids, first = np.unique(places.rows, return_index=True)
        order = np.argsort(first)
        row_ids, first = row_ids[order], first[order]
        last = np.append(first[1:], len(places.rows)) - 1
        numbers = [line.sample for line in batch.lines]
        for name, scores in read.scores.items():
            unit, hits = self.index[name], read.hits[name] > 0
            self.seen[unit, numbers] = self.scored[unit, numbers] = True
            self.loglikelihood[unit, row_ids] = np.add.reduceat(scores, first)
            self.hits[unit, row_ids] = np.add.reduceat(hits.astype(np.int64), first)
            self.last_hit[unit, row_ids] = hits[last]
        starts = read.starts
        samples = np.array([batch.lines[line].sample for line in places.line])
        compared, tokens = np.unique(samples[places.at], return_counts=True)
        for name, sums in read.outputs.items():
            unit = self.index[name]
            # The lines of a sample whose rows share nothing need not be neighbours, so it may be there more than once.
            for metric, value in zip(OUTPUT_METRICS, sums, strict=True):
                np.add.at(self.output[metric][unit], samples[starts], value)
            self.output_count[unit, compared] += tokens
        streamed = [number for number, line in enumerate(batch.lines) if line.stream]
        positions = [numbers[number] for number in streamed]
        for name, (cosine, angle) in read.moved.items():
            unit = self.index[name]
            self.seen[unit, positions] = True
            self.cosine[unit, positions] = _or_infinite(cosine[streamed])
            self.angular_last[unit, positions] = _or_infinite(angle[streamed])

    def state(self) -> dict[str, np.ndarray]:
        """All arrays by name, and not copies: to write into them changes the scores."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return named | {f"output.{metric}": values for metric, values in self.output.items()}

    def not_numbers(self, name: Name) -> bool:
        number = self.index[name]
        return bool(
            np.isnan(
                self.loglikelihood[number, np.repeat(self.scored[number], np.diff(self.offsets))]
            ).any()
        )

    def rows(self, units: Iterable[Name]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys) for the given units, on the samples that each of them saw."""
        records = []
        for unit in units:
            for position in np.flatnonzero(self.seen[self.index[unit]]).tolist():
                records.append(
                    {
                        "unit": unit,
                        "sample": self.samples[position].index,
                        **self.sample(unit, position),
                    }
                )
        return records

    def sample(self, name: Name, position: int) -> dict[str, Any]:
        """What was measured of one candidate on the sample at a position, as columns of table `sweeps`.

        A number that is not finite counts as a wrong answer, an infinite loss or an infinite distance: null is only for
        what was not measured.
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
            for column, values in (("gold_margin", scores), ("gold_margin_norm", scores / length)):
                lead = values[sample.right].max() - np.delete(values, sample.right).max()
                row[column] = float(lead) if np.isfinite(gold) else -np.inf
        row["correct"] = bool(self.correct([unit], position, False)[0])
        count = self.output_count[unit, position]
        if count:
            means = {
                metric: self.output[metric][unit, position] / count for metric in OUTPUT_METRICS
            }
            row |= {metric: float(_or_infinite(mean)) for metric, mean in means.items()}
        return row

    def column(self, column: str, names: Sequence[Name], position: int) -> np.ndarray:
        """One column of table `sweeps` for measured candidates on one sample, (candidates,); NaN if it has none."""
        if column == "correct" or (
            column == "correct_norm" and self.samples[position].kind == "choices"
        ):
            return self.correct(
                [self.index[name] for name in names], position, column != "correct"
            ).astype(float)
        values = [self.sample(name, position).get(column) for name in names]
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def correct(self, numbers: Sequence[int], position: int, normalised: bool) -> np.ndarray:
        """Whether each candidate (by number) answers the sample at a position right, (candidates,) boolean.

        `normalised` divides a choice's log-likelihood by its length, which other kinds of samples do not have. An
        answer is wrong unless all choices have scores and the gold one's is finite.
        """
        sample, start = self.samples[position], self.offsets[position]
        scores = self.loglikelihood[numbers, start : self.offsets[position + 1]]
        valid = np.isfinite(scores[:, sample.gold]) & ~np.isnan(scores).any(axis=1)
        if sample.kind == "text":
            return valid & self.last_hit[numbers, start]
        if sample.kind != "choices":
            lengths = [len(row.continuation) for row in sample.rows]
            return valid & (self.hits[numbers, start : self.offsets[position + 1]] == lengths).any(
                axis=1
            )
        length = np.array([float(row.characters) for row in sample.rows]) if normalised else 1.0
        return valid & np.isin((scores / length).argmax(axis=1), sample.right)


def or_null(value: float) -> float | None:
    """A number, or None for NaN: null is what was not measured."""
    return None if np.isnan(value) else float(value)


def _or_infinite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.inf)
