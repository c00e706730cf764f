"""Per-sample losses of candidates, as a metric defines them.

Strategies that search only use `Evaluator.measure_losses` and know nothing of streams.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.errors import LaminaError
from lamina.relevance import protocol

Loss = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Gives losses (candidates, samples) from columns of table `sweeps` of the same shape."""


def nats_per_token(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The loss of text, (candidates, samples)."""
    return columns["nll"] / columns["n_tokens"]


class _SweepColumns(dict[str, np.ndarray]):
    """Columns of table `sweeps` by name, (candidates, samples) each, computed at first use."""

    def __init__(
        self, scores: Scores, candidates: Sequence[Candidate], sample_indices: Sequence[int]
    ) -> None:
        self._scores = scores
        self._candidates = candidates
        self._sample_indices = sample_indices

    def __missing__(self, column: str) -> np.ndarray:
        by_sample = [
            self._scores.column(column, self._candidates, sample_index)
            for sample_index in self._sample_indices
        ]
        shape = (len(self._sample_indices), len(self._candidates))
        self[column] = np.array(by_sample, dtype=float).reshape(shape).T
        return self[column]


class Evaluator:
    """Measures the losses of candidates on the samples of a session.

    count: Number of samples; their indices are 0 … count - 1.
    """

    def __init__(self, session: Session, metric: str, score: str, loss: Loss | None = None) -> None:
        """Start without measurements.

        metric: The name of a metric that is measured by removal.
        score: How choices are compared: `acc` or `acc_norm`.
        loss: What is measured, by default the loss of the metric. It is infinite where logits are
            not finite.
        """
        self.session = session
        self.metric = metric
        self.loss = loss or partial(protocol.metric_named(metric).loss, score=score)
        self.count = len(session.scores.samples)

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        """Losses (candidates, samples), never NaN. No measurement is repeated.

        Raises LaminaError if the metric has no loss on one of the samples.
        """
        sample_indices = [int(sample_index) for sample_index in sample_indices]
        self._measure(list(dict.fromkeys(candidates)), sample_indices)
        columns = _SweepColumns(self.session.scores, candidates, sample_indices)
        losses = self.loss(columns)
        missing_losses = np.argwhere(np.isnan(losses))
        if len(missing_losses):
            sample_index = sample_indices[int(missing_losses[0, 1])]
            raise LaminaError(
                f"metric '{self.metric}' has no loss on sample {sample_index} of the "
                "calibration. Use another metric, or a calibration whose samples all have one, "
                "such as questions with choices only."
            )
        return losses

    def _measure(self, candidates: Sequence[Candidate], sample_indices: Sequence[int]) -> None:
        """Run each sample once, with all candidates that are still unmeasured on it."""
        scores = self.session.scores
        scores.add(candidates)
        score_rows = [scores.index[candidate] for candidate in candidates]
        is_missing = ~scores.scored[np.ix_(score_rows, sample_indices)]
        samples_by_pattern: dict[tuple[bool, ...], list[int]] = {}
        for sample_index, pattern in zip(sample_indices, is_missing.T.tolist(), strict=True):
            samples_by_pattern.setdefault(tuple(pattern), []).append(sample_index)
        for pattern, pattern_samples in samples_by_pattern.items():
            if any(pattern):
                unmeasured = compress(candidates, pattern)
                self.session.measure(
                    pattern_samples, {candidate: candidate for candidate in unmeasured}
                )
