"""The evaluator: per-sample losses of any candidates. Each is measured once, however often it is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lamina.engine.candidates import Candidate, Observation
from lamina.engine.scores import Name, Scores
from lamina.errors import LaminaError
from lamina.selection.losses import Loss


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


class Evaluator:
    """Measures losses for budgets and searches, which know nothing of streams.

    Attributes
    ----------
    count : number of samples; they have the numbers 0 … count - 1.
    loss : what `losses` gives.
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

        Nothing is measured twice. Candidates that lack the same samples share a pass.
        """
        numbers, scores = list(map(int, numbers)), self.session.scores
        asked = list(dict.fromkeys([*candidates, *self._beside]))
        scores.add(map(self._name, asked))
        lacking: dict[tuple[int, ...], list[Candidate]] = {}
        for candidate in asked:
            scored = scores.scored[scores.index[self._name(candidate)]]
            lacking.setdefault(tuple(number for number in numbers if not scored[number]), []).append(candidate)
        for samples, group in lacking.items():
            if samples:
                watched = {self._name(c): self._observed[c] for c in group if c in self._observed}
                self.session.measure(samples, {self._name(candidate): candidate for candidate in group}, watched)
        places = [scores.index[self._name(candidate)] for candidate in candidates]
        return np.array([self._loss(places, number) for number in numbers]).reshape(len(numbers), len(places)).T

    def rows(self, candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
        """Rows of table `sweeps` (without its keys): the results of each candidate on its measured samples."""
        return self.session.scores.rows(map(self._name, candidates))

    def _name(self, candidate: Candidate) -> Name:
        return self._named.get(candidate, candidate)

    def _loss(self, places: Sequence[int], number: int) -> np.ndarray:
        """Losses of the candidates at these places of the scores on one sample, (candidates,)."""
        scores = self.session.scores
        if self.loss.metric == "accuracy":
            return 1.0 - scores.correct(places, number, self.loss.field == "correct_norm")
        if self.loss.metric == "margin" and scores.samples[number].kind != "choices":
            raise LaminaError(
                f"metric '{self.loss.metric}' needs choices, and sample {number} of the calibration has none. Use "
                "accuracy or perplexity, or a calibration of multiple choice alone."
            )
        losses = np.array([scores.sample(scores.names[place], number)[self.loss.field] for place in places])
        return -losses if self.loss.metric == "margin" else losses
