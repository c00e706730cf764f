"""The evaluator: per-sample losses of any candidates. Each is measured once, however often it is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol

import numpy as np

from lamina.engine.candidates import Candidate, Observation
from lamina.engine.scores import Name, Scores
from lamina.errors import LaminaError
from lamina.relevance import protocol


class Measuring(Protocol):
    """The session that an evaluator measures with: a `Session` of the engine, or one that repairs the candidates."""

    @property
    def scores(self) -> Scores: ...

    def measure(
        self,
        numbers: Iterable[int],
        wanted: Mapping[Name, Candidate],
        observed: Mapping[Name, Observation] | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class Loss:
    """The loss of a metric; `score` is `acc` or `acc_norm`. An infinite loss is that of what gave no numbers."""

    metric: protocol.Metric
    score: str

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Losses from columns of `sweeps`, (candidates, samples) each."""
        return self.metric.loss(values, self.score)


def loss_of(metric: str, score: str) -> Loss:
    """The loss behind a metric that is measured by removal; `score` is `acc` or `acc_norm`."""
    return Loss(protocol.metric(metric), score)


class _Values(dict[str, np.ndarray]):
    """Columns of `sweeps` by name, (candidates, samples) each, read from scores when they are asked for."""

    def __init__(self, scores: Scores, names: Sequence[Name], numbers: Sequence[int]) -> None:
        self._scores, self._names, self._numbers = scores, names, numbers

    def __missing__(self, column: str) -> np.ndarray:
        read = [self._scores.column(column, self._names, number) for number in self._numbers]
        self[column] = np.array(read, dtype=float).reshape(len(self._numbers), len(self._names)).T
        return self[column]


class Evaluator:
    """Measures losses for budgets and searches, which know nothing of streams.

    count: number of samples; they have the numbers 0 … count - 1.
    loss: what `losses` gives.
    """

    def __init__(
        self,
        session: Measuring,
        loss: Loss,
        beside: Sequence[Candidate] = (),
        named: Mapping[Candidate, Name] | None = None,
        observed: Mapping[Candidate, Observation] | None = None,
    ) -> None:
        """The candidates `beside`, such as the model before a removal, are measured in each pass: they share a prefix
        with the others.

        `named` says under which names candidates stand in the session's scores (others under themselves), `observed`
        what to observe in the pass of a candidate.
        """
        self.session, self.loss = session, loss
        self.count = len(session.scores.samples)
        self._beside, self._named, self._observed = list(beside), named or {}, observed or {}

    def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
        """Losses on the samples with these numbers, (candidates, samples), never NaN.

        Nothing is measured twice. A sample runs once, with all candidates that lack it.
        """
        numbers, scores = list(map(int, numbers)), self.session.scores
        asked = list(dict.fromkeys([*candidates, *self._beside]))
        scores.add(map(self._name, asked))
        scored = scores.scored[
            np.ix_([scores.index[self._name(candidate)] for candidate in asked], numbers)
        ]
        lacking: dict[tuple[bool, ...], list[int]] = {}
        for number, pattern in zip(numbers, (~scored).T.tolist(), strict=True):
            lacking.setdefault(tuple(pattern), []).append(number)
        for pattern, samples in lacking.items():
            if group := list(compress(asked, pattern)):
                watched = {self._name(c): self._observed[c] for c in group if c in self._observed}
                self.session.measure(
                    samples, {self._name(candidate): candidate for candidate in group}, watched
                )
        losses = self.loss.of(
            _Values(scores, [self._name(candidate) for candidate in candidates], numbers)
        )
        if np.isnan(losses).any():
            number = numbers[int(np.argwhere(np.isnan(losses))[0, 1])]
            raise LaminaError(
                f"metric '{self.loss.metric.name}' has no loss on sample {number} of the calibration. Use another "
                "metric, or a calibration that has one on all samples, such as choices alone."
            )
        return losses

    def rows(self, candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys): the results of each candidate on its measured samples."""
        return self.session.scores.rows(map(self._name, candidates))

    def values(self, candidate: Candidate) -> Mapping[str, np.ndarray]:
        """Columns of table `sweeps` of a candidate that was measured on all samples, (1, samples) each."""
        return _Values(self.session.scores, [self._name(candidate)], range(self.count))

    def _name(self, candidate: Candidate) -> Name:
        return self._named.get(candidate, candidate)
