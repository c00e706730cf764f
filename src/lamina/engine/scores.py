"""Collects the readings of passes as the results of a sweep, by candidate and sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina.data.calibrations import Sample
from lamina.engine.packing import PackedBatch, ScoredTokens
from lamina.engine.readings import OUTPUT_METRICS, Readings

Name = Any
"""The name of a candidate in a session: a unit's text, or the candidate itself."""


class Scores:
    """Everything measured in one session, as arrays over (names, rows) and (names, samples).

    `names` are those of candidates: in a sweep the units, and `none`, the model before any further
    removal. `index` gives the position of a name. A row is one scored continuation, and
    `offsets[s]` is the first row of sample s.

    Over rows: `loglikelihood`, `hits` (how many tokens of the row were the likeliest) and
    `last_hit` (whether its last token was). Over samples: `cosine` and `angular_last` of the
    stream, `output` (sums of each of OUTPUT_METRICS) and `output_count` (over how many tokens).
    `scored` says which samples a candidate answered; `seen` also counts samples on which its unit
    was only observed.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.names: list[Name] = []
        self.index: dict[Name, int] = {}
        self.samples = list(samples)
        self.offsets = np.cumsum([0, *(len(sample.rows) for sample in samples)])
        over_rows = (0, int(self.offsets[-1]))
        over_samples = (0, len(self.samples))
        self.loglikelihood = np.zeros(over_rows)
        self.hits = np.zeros(over_rows, dtype=np.int64)
        self.last_hit = np.zeros(over_rows, dtype=bool)
        self.output = {metric: np.zeros(over_samples) for metric in OUTPUT_METRICS}
        self.output_count = np.zeros(over_samples)
        self.scored = np.zeros(over_samples, dtype=bool)
        self.seen = np.zeros(over_samples, dtype=bool)
        self.cosine = np.zeros(over_samples)
        self.angular_last = np.zeros(over_samples)

    def add(self, names: Iterable[Name]) -> None:
        """Append empty entries for new names."""
        new_names = [name for name in dict.fromkeys(names) if name not in self.index]
        for name in new_names:
            self.index[name] = len(self.names)
            self.names.append(name)

        n_new = len(new_names)
        self.hits = _append_rows(self.hits, n_new, 0)
        self.last_hit = _append_rows(self.last_hit, n_new, False)
        self.output_count = _append_rows(self.output_count, n_new, 0)
        self.scored = _append_rows(self.scored, n_new, False)
        self.seen = _append_rows(self.seen, n_new, False)
        self.loglikelihood = _append_rows(self.loglikelihood, n_new, np.nan)
        self.cosine = _append_rows(self.cosine, n_new, np.nan)
        self.angular_last = _append_rows(self.angular_last, n_new, np.nan)
        for metric, sums in self.output.items():
            self.output[metric] = _append_rows(sums, n_new, 0)

    def store_readings(self, batch: PackedBatch, scored: ScoredTokens, readings: Readings) -> None:
        """Add the readings of one pass."""
        self._store_logprobs(batch, scored, readings)
        self._store_outputs(batch, scored, readings)
        self._store_stream_distances(batch, readings)

    def _store_logprobs(self, batch: PackedBatch, scored: ScoredTokens, readings: Readings) -> None:
        """Sum over each row, whose tokens are contiguous."""
        rows, first_tokens = np.unique(scored.token_rows, return_index=True)
        batch_order = np.argsort(first_tokens)
        rows = rows[batch_order]
        first_tokens = first_tokens[batch_order]
        last_tokens = np.append(first_tokens[1:], len(scored.token_rows)) - 1

        samples = [line.sample_index for line in batch.lines]
        for name, logprobs in readings.logprobs.items():
            number = self.index[name]
            is_hit = readings.hits[name] > 0
            self.scored[number, samples] = True
            self.seen[number, samples] = True
            self.loglikelihood[number, rows] = np.add.reduceat(logprobs, first_tokens)
            self.hits[number, rows] = np.add.reduceat(is_hit.astype(np.int64), first_tokens)
            self.last_hit[number, rows] = is_hit[last_tokens]

    def _store_outputs(self, batch: PackedBatch, scored: ScoredTokens, readings: Readings) -> None:
        position_samples = np.array(
            [batch.lines[line].sample_index for line in scored.position_lines]
        )
        token_samples = position_samples[scored.token_positions]
        compared_samples, n_tokens = np.unique(token_samples, return_counts=True)
        # The lines of a sample whose rows share nothing need not be neighbours: a sample may have
        # several runs.
        run_samples = position_samples[readings.run_starts]
        for name, metric_sums in readings.output_sums.items():
            number = self.index[name]
            for metric, run_sums in zip(OUTPUT_METRICS, metric_sums, strict=True):
                np.add.at(self.output[metric][number], run_samples, run_sums)
            self.output_count[number, compared_samples] += n_tokens

    def _store_stream_distances(self, batch: PackedBatch, readings: Readings) -> None:
        gold_lines = [number for number, line in enumerate(batch.lines) if line.gold_indices]
        samples = [batch.lines[number].sample_index for number in gold_lines]
        for name, (cosine, angle) in readings.stream_distances.items():
            number = self.index[name]
            self.seen[number, samples] = True
            self.cosine[number, samples] = _or_infinite(cosine[gold_lines])
            self.angular_last[number, samples] = _or_infinite(angle[gold_lines])

    def state(self) -> dict[str, np.ndarray]:
        """All arrays by name. They are views: writing into them changes the scores."""
        arrays = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        for metric, sums in self.output.items():
            arrays[f"output.{metric}"] = sums
        return arrays

    def has_nan(self, name: Name) -> bool:
        """Whether a log-likelihood of a candidate is NaN on a sample that it answered."""
        number = self.index[name]
        is_scored_row = np.repeat(self.scored[number], np.diff(self.offsets))
        return bool(np.isnan(self.loglikelihood[number, is_scored_row]).any())

    def rows(self, units: Iterable[Name]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys): each unit on the samples that are `seen`."""
        records: list[dict[str, Any]] = []
        for unit in units:
            for position in np.flatnonzero(self.seen[self.index[unit]]).tolist():
                sample_index = self.samples[position].index
                measured = self.sample(unit, position)
                records.append({"unit": unit, "sample": sample_index, **measured})
        return records

    def sample(self, name: Name, position: int) -> dict[str, Any]:
        """The results of one candidate on the sample at `position`, as columns of `sweeps`.

        A number that is not finite counts as a wrong answer, an infinite loss or an infinite
        distance. Null only means that nothing was measured.
        """
        number = self.index[name]
        sample = self.samples[position]
        columns: dict[str, Any] = {
            "cosine": _or_null(self.cosine[number, position]),
            "angular_last": _or_null(self.angular_last[number, position]),
            "n_tokens": len(sample.rows[sample.gold].continuation),
        }
        if self.scored[number, position]:
            columns |= self._answer_columns(number, position)
            columns |= self._output_columns(number, position)
        return columns

    def _answer_columns(self, number: int, position: int) -> dict[str, Any]:
        """How a candidate answered a sample."""
        sample = self.samples[position]
        scores = self.loglikelihood[number, self.offsets[position] : self.offsets[position + 1]]
        gold_score = -np.inf if np.isnan(scores).any() else scores[sample.gold]
        columns: dict[str, Any] = {"nll": float(-gold_score)}
        if sample.kind == "choices":
            columns["correct_norm"] = bool(self.correct([number], position, True)[0])
            n_characters = [row.characters for row in sample.rows]
            margins = {"gold_margin": scores, "gold_margin_norm": scores / n_characters}
            for column, values in margins.items():
                best_wrong = np.delete(values, sample.right).max()
                margin = values[sample.right].max() - best_wrong
                columns[column] = float(margin) if np.isfinite(gold_score) else -np.inf
        columns["correct"] = bool(self.correct([number], position, False)[0])
        return columns

    def _output_columns(self, number: int, position: int) -> dict[str, float]:
        """Means of OUTPUT_METRICS over a sample's scored tokens; empty if nothing was compared."""
        n_tokens = self.output_count[number, position]
        if not n_tokens:
            return {}
        columns: dict[str, float] = {}
        for metric in OUTPUT_METRICS:
            mean = self.output[metric][number, position] / n_tokens
            columns[metric] = float(_or_infinite(mean))
        return columns

    def column(self, column: str, names: Sequence[Name], position: int) -> np.ndarray:
        """One column of `sweeps` for measured candidates on one sample, (candidates,).

        NaN for a candidate that has no such number.
        """
        has_choices = self.samples[position].kind == "choices"
        if column == "correct" or (column == "correct_norm" and has_choices):
            numbers = [self.index[name] for name in names]
            return self.correct(numbers, position, column != "correct").astype(float)
        values = [self.sample(name, position).get(column) for name in names]
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def correct(self, numbers: Sequence[int], position: int, normalised: bool) -> np.ndarray:
        """Whether candidates answer the sample at a position correctly, (candidates,) boolean.

        An answer is wrong unless all choices have scores and the gold one's is finite.

        numbers: The candidates' positions from `index`.
        normalised: Divide a choice's log-likelihood by its length in characters; no effect on other
            kinds of samples.
        """
        sample = self.samples[position]
        first_row = self.offsets[position]
        end_row = self.offsets[position + 1]
        scores = self.loglikelihood[numbers, first_row:end_row]
        is_valid = np.isfinite(scores[:, sample.gold]) & ~np.isnan(scores).any(axis=1)
        if sample.kind == "text":
            return is_valid & self.last_hit[numbers, first_row]
        if sample.kind != "choices":
            lengths = [len(row.continuation) for row in sample.rows]
            is_complete = self.hits[numbers, first_row:end_row] == lengths
            return is_valid & is_complete.any(axis=1)
        if normalised:
            scores = scores / np.array([float(row.characters) for row in sample.rows])
        return is_valid & np.isin(scores.argmax(axis=1), sample.right)


def _append_rows(array: np.ndarray, n_rows: int, filler: float) -> np.ndarray:
    """The array with `n_rows` rows of `filler` appended."""
    rows = np.full((n_rows, array.shape[1]), filler, dtype=array.dtype)
    return np.concatenate([array, rows])


def _or_null(value: float) -> float | None:
    """A number, or None for NaN, which stands for what was not measured."""
    return None if np.isnan(value) else float(value)


def _or_infinite(values: np.ndarray) -> np.ndarray:
    """The values, infinite where they are not finite."""
    return np.where(np.isfinite(values), values, np.inf)
