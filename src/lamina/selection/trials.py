"""A search for whole sets: it compares candidates, measures each once, counts and logs the work.

A strategy such as `evolutionary` asks `Search.best` which of some sets lose least, and knows nothing of models.
`Trials` keeps every loss, so that a set that is compared again costs nothing, and a job that was killed goes on where
it was.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lamina.data.splitting import documents, held_out
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.models.units import parse
from lamina.models.workload import done
from lamina.modules import load
from lamina.selection.plans import UnitPrices

# Equal means must compare equal however their sums were rounded.
DIGITS = 12
BASE, WINNER, HELD_BACK = "none", "winner", "held back"


class Asked(Protocol):
    """The source of losses: an `Evaluator`, or a function of sets in tests."""

    def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray: ...


class Trials:
    """Losses of candidates by sample, measured once in a job.

    With a `log`, every answer is appended to that file. All random choices have a seed, so a job that was killed asks
    the same questions in the same order, finds their answers in the log, and ends with the same numbers.
    """

    def __init__(
        self,
        asked: Asked,
        count: int,
        log: Path | None = None,
        origin: str = "",
        spent: Callable[[], int] = lambda: 0,
        prepare: Callable[[Sequence[Candidate]], None] = lambda candidates: None,
        prices: UnitPrices | None = None,
    ) -> None:
        """Samples have the numbers 0 … count - 1. `prices` are those of the units, one each by default.

        `origin` identifies a log; the log of another search is deleted. `spent` counts the layer-tokens so far.
        `prepare` is called with the candidates before they are measured. It is also called if the log has the answer,
        so that it does the same work in a job that was killed before.
        """
        self.count, self._asked, self._spent, self._prepare = count, asked, spent, prepare
        self.prices = prices or UnitPrices()
        self._values: dict[Candidate, np.ndarray] = {}
        self._log, self._logged = log, deque(_entries(log, origin) if log else [])

    def values(self, candidate: Candidate) -> np.ndarray:
        """The losses of a candidate so far, (samples,); NaN where it was not measured."""
        return self._values.setdefault(candidate, np.full(self.count, np.nan))

    def losses(
        self, candidates: Sequence[Candidate], numbers: np.ndarray
    ) -> tuple[np.ndarray, list[float]]:
        """Losses on these samples, (candidates, samples), and the layer-tokens that each candidate cost just now.

        A loss that is not a number counts as infinite. Candidates that lack the same samples share a pass and its cost.
        """
        lacking: dict[tuple[int, ...], list[Candidate]] = {}
        for candidate in dict.fromkeys(candidates):
            values = self.values(candidate)[numbers]
            lacking.setdefault(tuple(numbers[np.isnan(values)].tolist()), []).append(candidate)
        cost = dict.fromkeys(candidates, 0.0)
        for missing, group in lacking.items():
            if missing:
                rows, spent = self._measured(group, missing)
                for candidate, row in zip(group, rows, strict=True):
                    self._values[candidate][list(missing)] = row
                    cost[candidate] = spent / len(group)
        return np.array([self._values[one][numbers] for one in candidates]), [
            cost[one] for one in candidates
        ]

    def _measured(
        self, group: Sequence[Candidate], missing: Sequence[int]
    ) -> tuple[np.ndarray, int]:
        self._prepare(group)
        question = {"units": [sorted(one.removed) for one in group], "samples": list(missing)}
        if self._logged:
            entry = self._logged.popleft()
            if any(entry[key] != value for key, value in question.items()):
                raise LaminaError(
                    f"{self._log} was left by another search than this one. Delete it and run again."
                )
            done.earlier += entry["layer_tokens"]
            return np.array(entry["losses"]), entry["layer_tokens"]
        before = self._spent()
        losses = np.asarray(self._asked.losses(group, missing), dtype=float)
        answer = {
            "losses": np.where(np.isnan(losses), np.inf, losses).tolist(),
            "layer_tokens": self._spent() - before,
        }
        if self._log:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(question | answer) + "\n")
        return np.array(answer["losses"]), answer["layer_tokens"]


def _entries(log: Path, origin: str) -> list[dict[str, Any]]:
    """The entries of a log with this origin, up to a damaged line. All other lines are removed from the file."""
    lines = (
        log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if log.exists() else []
    )
    header = json.dumps({"origin": origin})
    if lines[:1] != [header]:
        lines = [header]
    entries: list[dict[str, Any]] = []
    with suppress(ValueError):
        for line in lines[1:]:
            entries.append(json.loads(line))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{line}\n" for line in lines[: 1 + len(entries)]), encoding="utf-8")
    return entries


class Search:
    """The comparisons that one strategy asks of the trials.

    numbers: numbers of the samples that may decide the search, ascending.
    rows: of table `searches`, without model, calibration and selector, in the order of the comparisons.
    """

    def __init__(
        self, strategy: str, trials: Trials, numbers: np.ndarray, lengths: np.ndarray
    ) -> None:
        """`lengths` are the tokens of every sample, by number."""
        self.strategy, self.trials, self.numbers, self._lengths = strategy, trials, numbers, lengths
        self.rows: list[dict[str, Any]] = []

    def best(
        self,
        candidates: Sequence[Candidate],
        keep: int,
        step: int,
        stage: str = "1",
        numbers: np.ndarray | None = None,
    ) -> list[Candidate]:
        """The `keep` candidates with the least mean loss, best first; among equals those that lack deeper units.

        They are compared on the samples with these `numbers`, by default on all samples of the search.
        """
        numbers = self.numbers if numbers is None else numbers
        new = [
            int(np.isnan(self.trials.values(candidate)[numbers]).sum()) for candidate in candidates
        ]
        losses, cost = self.trials.losses(candidates, numbers)
        means = losses.mean(axis=1)
        order = sorted(
            range(len(candidates)),
            key=lambda i: (
                means[i].round(DIGITS),
                sorted(-parse(unit)[0] for unit in candidates[i].removed),
            ),
        )[:keep]
        for number, candidate in enumerate(candidates):
            self.rows.append(
                {
                    "strategy": self.strategy,
                    "removed": self.trials.prices.size_of(candidate.removed),
                    "units": sorted(candidate.removed, key=parse),
                    "step": step,
                    "stage": stage,
                    "n_samples": len(numbers),
                    "n_new": new[number],
                    "loss": float(means[number]),
                    "kept": number in order,
                    "layer_tokens": cost[number],
                }
            )
        return [candidates[number] for number in order]

    def draw(self, tokens: int, generator: np.random.Generator) -> np.ndarray:
        """Random samples that have at least `tokens` tokens together; all samples if these have fewer."""
        order = generator.permutation(self.numbers)
        return np.sort(order[: np.searchsorted(np.cumsum(self._lengths[order]), tokens) + 1])

    def judge(self, winner: Candidate, step: int, numbers: np.ndarray) -> None:
        """Measure `winner` on samples that the search has not seen."""
        self.best([winner], 1, step, HELD_BACK, numbers)
        (losses,), _ = self.trials.losses([winner], numbers)
        known = len(losses) > 1 and np.isfinite(losses).all()
        self.rows[-1]["loss_stderr"] = (
            float(losses.std(ddof=1) / np.sqrt(len(losses))) if known else None
        )


@dataclass(frozen=True)
class Result:
    """`sets` are the best sets by size, `losses` the mean loss of each on the samples of the search, that of the
    unpruned model under 0, and `rows` those of table `searches` without model, calibration and selector.
    """

    sets: Mapping[int, Candidate]
    losses: Mapping[int, float]
    rows: Sequence[Mapping[str, Any]]


def run(
    trials: Trials,
    units: Sequence[str],
    sizes: Sequence[int],
    options: Any,
    seen: np.ndarray,
    held_back: np.ndarray,
    lengths: np.ndarray,
) -> Result:
    """Search the best set of each size, and measure it and the unpruned model on the samples held back.

    seen, held_back: Numbers of the samples of the search, and of the samples on which the final sets are measured once.
    lengths: Tokens of every sample.
    """
    own, base = (Search(strategy, trials, seen, lengths) for strategy in (options.strategy, BASE))
    sets: dict[int, Candidate] = load(f"lamina.selection.strategies.{options.strategy}").find(
        own, units, sizes, options
    )
    base.best([Candidate()], 1, 0, WINNER)
    base.judge(Candidate(), 0, held_back)
    losses = {0: base.rows[0]["loss"]}
    for size, end in sets.items():
        own.best([end], 1, size, WINNER)
        losses[size] = own.rows[-1]["loss"]
    for size, end in sets.items():
        own.judge(end, size, held_back)
    return Result(
        sets,
        losses,
        [row | {"evaluation": number} for number, row in enumerate([*base.rows, *own.rows])],
    )


def split(
    sequences: Sequence[Sequence[int]], share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the samples that a search sees and of those held back, a seeded share of the documents.

    Raises LaminaError if there are fewer than two documents.
    """
    purpose = "a search chooses on some documents and measures its winner on others (`held_back`)"
    (flags,) = held_out([sequences], share, seed, purpose)
    return np.flatnonzero(~np.array(flags)), np.flatnonzero(flags)


def without(
    added: Sequence[Sequence[int]], held_back: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """Samples of another calibration whose documents are not among those that a search holds back, at any length."""
    mine, theirs = documents([added, held_back])
    judging = set(theirs)
    return [
        sequence for sequence, document in zip(added, mine, strict=True) if document not in judging
    ]
