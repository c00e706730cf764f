"""The trials of a search for whole sets of units: each set is measured once, counted and logged.

A strategy such as `rearrange` asks `Search.select_best` which of some sets have the least loss, and
knows nothing of models. `Trials` keeps every loss, so comparing a set again costs nothing, and a
killed job resumes where it was.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np

from lamina.data.splitting import held_out, index_documents
from lamina.engine.candidates import Candidate
from lamina.models import workload
from lamina.models.units import parse_unit
from lamina.selection.plans import UnitPrices
from lamina.selection.rounds import count_sets

# Equal means must compare equal, however their sums were rounded.
DIGITS = 12

# In table `searches`: the strategy of the base model's rows, and the last stages of a search.
BASE = "none"
WINNER = "winner"
HELD_BACK = "held back"


class LossSource(Protocol):
    """What measures losses: an `Evaluator`, or in tests a function of sets."""

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        """Losses (candidates, samples) on the samples with these indices."""


class LoggedMeasurement(TypedDict):
    """One line of the log: the losses of some candidates on some samples."""

    units: list[list[str]]
    """The units that each candidate lacks."""
    samples: list[int]
    losses: list[list[float]]
    """(candidates, samples); never NaN."""
    layer_tokens: int
    """Cost of the measurement."""


class TrialLog:
    """The measurements of a search, one JSON line each, in the order in which they were made.

    All random choices of a search are seeded. So a killed job that runs again measures the same
    candidates in the same order, finds the losses here, and ends with the same numbers. If rounding
    makes it propose other candidates, the rest of the log is dropped: batches, and with them the
    last digits of losses, depend on the free memory.
    """

    def __init__(self, file: Path, origin: str) -> None:
        """Continue the log in a file. A log of another `origin` is emptied."""
        self.file = file
        self._unread = deque(_read_measurements(file, origin))
        self._n_read = 0

    def read_next(self, units: list[list[str]], samples: list[int]) -> LoggedMeasurement | None:
        """The next measurement of the killed job; None if it is of others, or after its last one."""
        if not self._unread:
            return None
        measurement = self._unread.popleft()
        if measurement["units"] != units or measurement["samples"] != samples:
            self._drop_unread()
            return None
        self._n_read += 1
        return measurement

    def _drop_unread(self) -> None:
        log_lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        self.file.write_text("".join(log_lines[: 1 + self._n_read]), encoding="utf-8")
        self._unread.clear()

    def append(self, measurement: LoggedMeasurement) -> None:
        """Write a new measurement."""
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(measurement) + "\n")


def _read_measurements(file: Path, origin: str) -> list[LoggedMeasurement]:
    """The measurements in a log of this origin. A damaged line and all after it are cut off."""
    log_header = json.dumps({"origin": origin})
    log_lines: list[str] = []
    if file.exists():
        # After the last line break there is nothing, or a line that the kill interrupted.
        log_lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    if log_lines[:1] != [log_header]:
        log_lines = [log_header]

    measurements: list[LoggedMeasurement] = []
    with suppress(ValueError):
        for log_line in log_lines[1:]:
            measurements.append(json.loads(log_line))
    intact_lines = log_lines[: 1 + len(measurements)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{log_line}\n" for log_line in intact_lines), encoding="utf-8")
    return measurements


class Trials:
    """The losses of candidates by sample, each measured once in a job."""

    def __init__(
        self,
        loss_source: LossSource,
        n_samples: int,
        log: Path | None = None,
        origin: str = "",
        count_layer_tokens: Callable[[], int] = lambda: 0,
        prepare: Callable[[], None] = lambda: None,
        prices: UnitPrices | None = None,
    ) -> None:
        """Start, or continue from a log.

        loss_source: Measures what is not known yet.
        n_samples: Samples have the indices 0 … n_samples - 1.
        log: The file to which every measurement is appended.
        origin: Identifies the search that a log belongs to.
        count_layer_tokens: Returns the layer-tokens that the loss source has spent so far.
        prepare: Called before a measurement.
        prices: What units count in a size, by default one each.
        """
        self.prices = prices or UnitPrices()
        self._loss_source = loss_source
        self._n_samples = n_samples
        self._count_layer_tokens = count_layer_tokens
        self._prepare = prepare
        self._log = TrialLog(log, origin) if log else None
        self._losses: dict[Candidate, np.ndarray] = {}

    def get_losses(self, candidate: Candidate) -> np.ndarray:
        """The losses of a candidate so far, (samples,); NaN where it was not measured."""
        if candidate not in self._losses:
            self._losses[candidate] = np.full(self._n_samples, np.nan)
        return self._losses[candidate]

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: np.ndarray
    ) -> tuple[np.ndarray, list[float]]:
        """Losses on these samples, (candidates, samples), and the cost of each candidate.

        The cost is in layer-tokens. Candidates that are still unmeasured on the same samples share
        a pass and its cost. A loss that is not a number counts as infinite.
        """
        candidates_by_missing: dict[tuple[int, ...], list[Candidate]] = {}
        for candidate in dict.fromkeys(candidates):
            is_missing = np.isnan(self.get_losses(candidate)[sample_indices])
            missing_samples = tuple(sample_indices[is_missing].tolist())
            candidates_by_missing.setdefault(missing_samples, []).append(candidate)

        layer_tokens = dict.fromkeys(candidates, 0.0)
        for missing_samples, group in candidates_by_missing.items():
            if not missing_samples:
                continue
            group_losses, group_layer_tokens = self._measure(group, list(missing_samples))
            for candidate, losses in zip(group, group_losses, strict=True):
                self._losses[candidate][list(missing_samples)] = losses
                layer_tokens[candidate] = group_layer_tokens / len(group)

        all_losses = np.array([self._losses[candidate][sample_indices] for candidate in candidates])
        return all_losses, [layer_tokens[candidate] for candidate in candidates]

    def _measure(
        self, candidates: Sequence[Candidate], sample_indices: list[int]
    ) -> tuple[np.ndarray, int]:
        """Losses (candidates, samples) and their cost in layer-tokens, from the log if possible."""
        units = [sorted(candidate.edits) for candidate in candidates]
        logged_measurement = self._log.read_next(units, sample_indices) if self._log else None
        if logged_measurement:
            workload.done.advance(count_sets(candidates))
            workload.done.earlier += logged_measurement["layer_tokens"]
            return np.array(logged_measurement["losses"]), logged_measurement["layer_tokens"]

        self._prepare()
        layer_tokens_before = self._count_layer_tokens()
        measured_losses = self._loss_source.measure_losses(candidates, sample_indices)
        losses = np.asarray(measured_losses, dtype=float)
        losses = np.where(np.isnan(losses), np.inf, losses)
        layer_tokens = self._count_layer_tokens() - layer_tokens_before
        workload.done.advance(count_sets(candidates))
        if self._log:
            self._log.append(
                {
                    "units": units,
                    "samples": sample_indices,
                    "losses": losses.tolist(),
                    "layer_tokens": layer_tokens,
                }
            )
        return losses, layer_tokens


class SearchRow(TypedDict):
    """A row of table `searches` without model, calibration, selector and `evaluation`.

    `lamina.tables.prune` describes the columns.
    """

    strategy: str
    removed: int
    units: list[str]
    step: int
    stage: str
    n_samples: int
    n_new: int
    """Samples on which the set had not been measured before."""
    loss: float
    kept: bool
    layer_tokens: float
    change: float | None
    change_stderr: float | None
    loss_stderr: NotRequired[float | None]


class Search:
    """The comparisons that one strategy requests from the trials."""

    def __init__(self, strategy: str, trials: Trials, sample_indices: np.ndarray) -> None:
        self.strategy = strategy
        self.trials = trials
        self.sample_indices = sample_indices
        """Indices of the samples that may decide the search, ascending."""
        self.rows: list[SearchRow] = []
        """Rows in the order of the comparisons."""

    def select_best(
        self,
        candidates: Sequence[Candidate],
        n_kept: int,
        step: int,
        stage: str = "1",
        sample_indices: np.ndarray | None = None,
    ) -> list[Candidate]:
        """The candidates with the least mean loss, best first.

        Ties go to the set that removes deeper units. The candidates are compared on these samples,
        by default on all samples of the search.
        """
        compared_samples = self.sample_indices if sample_indices is None else sample_indices
        n_new = [
            int(np.isnan(self.trials.get_losses(candidate)[compared_samples]).sum())
            for candidate in candidates
        ]
        sample_losses, layer_tokens = self.trials.measure_losses(candidates, compared_samples)
        mean_losses = sample_losses.mean(axis=1)
        base_losses = self.trials.get_losses(Candidate())[compared_samples]

        def sort_key(index: int) -> tuple[float, list[int]]:
            layers_from_deepest = sorted(-parse_unit(unit)[0] for unit in candidates[index].edits)
            return mean_losses[index].round(DIGITS), layers_from_deepest

        kept_indices = sorted(range(len(candidates)), key=sort_key)[:n_kept]
        for index, candidate in enumerate(candidates):
            change, change_stderr = _mean_with_stderr(sample_losses[index] - base_losses)
            self.rows.append(
                {
                    "strategy": self.strategy,
                    "removed": self.trials.prices.size_of(candidate.edits),
                    "units": sorted(candidate.edits, key=parse_unit),
                    "step": step,
                    "stage": stage,
                    "n_samples": len(compared_samples),
                    "n_new": n_new[index],
                    "loss": float(mean_losses[index]),
                    "kept": index in kept_indices,
                    "layer_tokens": layer_tokens[index],
                    "change": change,
                    "change_stderr": change_stderr,
                }
            )
        return [candidates[index] for index in kept_indices]

    def judge(self, winner: Candidate, step: int, sample_indices: np.ndarray) -> None:
        """Measure a winner on samples that the search has not seen."""
        self.select_best([winner], 1, step, HELD_BACK, sample_indices)
        (losses,), _ = self.trials.measure_losses([winner], sample_indices)
        _, self.rows[-1]["loss_stderr"] = _mean_with_stderr(losses)


def _mean_with_stderr(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of values by sample and its standard error; None if a value is not finite."""
    if not np.isfinite(values).all():
        return None, None
    if len(values) < 2:
        return float(values.mean()), None
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


@dataclass(frozen=True)
class SearchResult:
    """What a search has found."""

    sets: Mapping[int, Candidate]
    """The best set of each size."""
    losses: Mapping[int, float]
    """The mean loss of each best set on the samples of the search."""
    base_loss: float
    """The mean loss of the base model on the same samples."""
    rows: Sequence[Mapping[str, Any]]
    """Rows of table `searches`, without model, calibration and selector."""


def run_search(
    trials: Trials,
    units: Sequence[str],
    sizes: Sequence[int],
    options: Any,
    seen_indices: np.ndarray,
    heldback_indices: np.ndarray,
) -> SearchResult:
    """Search the best set of each size; measure it and the base model on the held-back samples.

    seen_indices, heldback_indices: Indices of the samples that the search uses, and of those on
        which the final sets are measured once.
    """
    search = Search(options.strategy, trials, seen_indices)
    strategy = import_module(f"lamina.selection.strategies.{options.strategy}")
    set_by_size: dict[int, Candidate] = strategy.find(search, units, sizes, options)

    base_search = Search(BASE, trials, seen_indices)
    base_search.select_best([Candidate()], 1, 0, WINNER)
    base_search.judge(Candidate(), 0, heldback_indices)
    base_loss = base_search.rows[0]["loss"]
    mean_losses: dict[int, float] = {}
    for plan_size, winner in set_by_size.items():
        search.select_best([winner], 1, plan_size, WINNER)
        mean_losses[plan_size] = search.rows[-1]["loss"]
    for plan_size, winner in set_by_size.items():
        search.judge(winner, plan_size, heldback_indices)

    search_rows = [
        {**row, "evaluation": evaluation}
        for evaluation, row in enumerate([*base_search.rows, *search.rows])
    ]
    return SearchResult(set_by_size, mean_losses, base_loss, search_rows)


def split_samples(
    sequences: Sequence[Sequence[int]], share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the samples that a search sees, and of a held-back share of the documents.

    Raises LaminaError if there are fewer than two documents.
    """
    purpose = "a search chooses on some documents and measures its winner on others (`held_back`)"
    (heldback_flags,) = held_out([sequences], share, seed, purpose)
    is_held_back = np.array(heldback_flags)
    return np.flatnonzero(~is_held_back), np.flatnonzero(is_held_back)


def exclude_documents(
    sequences: Sequence[Sequence[int]], held_back_sequences: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """The sequences whose documents, at any length, are not among the held-back ones."""
    document_of_sequence, held_back_documents = index_documents([sequences, held_back_sequences])
    excluded_documents = set(held_back_documents)
    return [
        sequence
        for sequence, document in zip(sequences, document_of_sequence, strict=True)
        if document not in excluded_documents
    ]
