"""Sets of units that several ways proposed compete on judge documents: the heart of strategy `portfolio`.

`lamina.selection.judging` brings the proposals, the judge documents and the repairs; this module knows no model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NotRequired, TypedDict

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.models.units import parse_unit
from lamina.selection.plans import UnitPrices
from lamina.selection.trials import Trials

# Shares of the judge documents on which sets are compared, and how many sets of a size survive each round.
ROUNDS = ((0.25, 8), (0.5, 4), (1.0, 1))
N_EXCHANGED = 2  # sets of a size around which exchanges are tried
N_CUTS = 200  # of the last judge documents in two, which correct the winner's loss
EXCHANGE = "exchange"
NONE = "none"


@dataclass(frozen=True)
class Entrant:
    """A set of units that competes at one size."""

    member: str
    """Who proposed it."""
    units: frozenset[str]
    candidates: Mapping[str, Candidate]
    """The set by repair, the bare one under `none`."""


@dataclass(frozen=True)
class JudgeDocuments:
    """The samples that judge, by calibration, each in a drawn order, which is that in which they judge."""

    samples: Sequence[np.ndarray]
    """Indices of the samples of each calibration."""
    weights: Sequence[float]
    """What the mean loss of each calibration counts."""

    def between(self, start: float, end: float) -> list[np.ndarray]:
        """The samples between two shares of each calibration, at least one of each."""
        parts: list[np.ndarray] = []
        for indices in self.samples:
            count = len(indices)
            first = min(round(start * count), count - 1)
            last = max(1, round(end * count))
            parts.append(indices[first:last])
        return parts

    def mean_loss(self, losses: np.ndarray, part: Sequence[np.ndarray]) -> np.ndarray:
        """Weighted sums over calibrations of the mean losses on `part`, (…,), from losses (…, samples)."""
        means = (losses[..., indices].mean(axis=-1) for indices in part)
        return sum(weight * mean for mean, weight in zip(means, self.weights, strict=True))


class MemberResult(TypedDict):
    """What a member's set loses on all documents that it was measured on, with the repair that suits it best."""

    units: list[str]
    repair: str
    loss: float
    more: float
    """How much more than the winner, on the same documents."""
    n_samples: int


class TournamentChoice(TypedDict):
    """The set of one size that won, as a plan records it."""

    units: list[str]
    member: str
    repair: str
    loss: float
    corrected_loss: float
    """Not flattered by the winner's being the best of many, see `corrected_loss`."""
    n_samples: int
    repairs: dict[str, float]
    """The loss of the winner with each repair, and bare under `none`."""
    members: dict[str, MemberResult]
    note: NotRequired[str]


FormCandidates = Callable[
    [Iterable[frozenset[str]]], Mapping[frozenset[str], Mapping[str, Candidate]]
]
"""Gives the candidates of sets by repair, bare under `none`. It fits what is not fitted yet."""


class Tournament:
    """Sets of units compete on judge documents: on few documents first, the best sets on more.

    Each set is measured bare and with every repair; its loss is the least of these. Sizes compete apart and are
    measured together, since their sets share passes.
    """

    def __init__(
        self, trials: Trials, judge_documents: JudgeDocuments, form_candidates: FormCandidates
    ) -> None:
        self.trials = trials
        self.judge_documents = judge_documents
        self.form_candidates = form_candidates
        self.rows: list[dict[str, Any]] = []
        """Of table `searches`, without its keys."""
        self._entrants: dict[int, list[Entrant]] = {}
        self._proposals: dict[int, Mapping[str, frozenset[str]]] = {}
        self._documents_seen: dict[tuple[int, frozenset[str]], list[np.ndarray]] = {}

    def play(
        self,
        proposals: Mapping[int, Mapping[str, frozenset[str]]],
        exchange: Callable[[frozenset[str]], Sequence[frozenset[str]]],
    ) -> None:
        """Play all rounds.

        proposals: The sets of the members, by size.
        exchange: Gives the sets to try around one, which enter in the first round.
        """
        self._proposals = dict(proposals)
        self._entrants = {size: [] for size in proposals}
        self._admit({size: list(sets.items()) for size, sets in proposals.items()})
        n_seen_before = 0
        for number, (share, n_survivors) in enumerate(ROUNDS, start=1):
            documents = self.judge_documents.between(0, share)
            layer_tokens = self._measure(documents)
            if number == 1:
                self._admit(self._exchanges(documents, exchange))
                for candidate, cost in self._measure(documents).items():
                    layer_tokens[candidate] = layer_tokens.get(candidate, 0.0) + cost
            n_seen = count_samples(documents)
            for size, entrants in self._entrants.items():
                survivors = self._ranked(entrants, documents)[:n_survivors]
                for entrant in entrants:
                    self.rows += [
                        {
                            "removed": size,
                            "step": size,
                            "stage": str(number),
                            "units": sorted(entrant.units, key=parse_unit),
                            "member": entrant.member,
                            "repair": repair,
                            "n_samples": n_seen,
                            "n_new": n_seen - n_seen_before,
                            "layer_tokens": layer_tokens[candidate],
                            "loss": self._loss(entrant, repair, documents),
                            "kept": entrant in survivors,
                        }
                        for repair, candidate in entrant.candidates.items()
                    ]
                # All finalists correct the loss of the winner, so they stay.
                if n_survivors > 1:
                    self._entrants[size] = survivors
            n_seen_before = n_seen

    def choose(self, seed: int) -> dict[int, TournamentChoice]:
        """The set and repair of each size with the least loss on all judge documents; `seed` draws the correction."""
        choices = {size: self._choose(size, seed) for size in self._entrants}
        for size, choice in choices.items():
            better = [
                other
                for other in sorted(choices)
                if other > size and choices[other]["loss"] < choice["loss"]
            ]
            if better:
                choice["note"] = (
                    f"At size {better[0]} the model loses less on these documents than at size "
                    f"{size}."
                )
        return choices

    def _admit(self, sets: Mapping[int, Sequence[tuple[str, frozenset[str]]]]) -> None:
        """Enter sets with their members, by size. A set that is already in keeps the member that proposed it first."""
        wanted = [units for of_size in sets.values() for _, units in of_size]
        candidates = self.form_candidates(wanted)
        for size, of_size in sets.items():
            for member, units in of_size:
                if units not in {entrant.units for entrant in self._entrants[size]}:
                    self._entrants[size].append(Entrant(member, units, candidates[units]))

    def _exchanges(
        self,
        documents: Sequence[np.ndarray],
        exchange: Callable[[frozenset[str]], Sequence[frozenset[str]]],
    ) -> dict[int, list[tuple[str, frozenset[str]]]]:
        """The sets around the best ones of each size."""
        sets: dict[int, list[tuple[str, frozenset[str]]]] = {}
        for size, entrants in self._entrants.items():
            sets[size] = []
            for entrant in self._ranked(entrants, documents)[:N_EXCHANGED]:
                sets[size] += [(EXCHANGE, units) for units in exchange(entrant.units)]
        return sets

    def _measure(self, documents: Sequence[np.ndarray]) -> dict[Candidate, float]:
        """Measure all sets of all sizes on these documents; returns the layer-tokens that each candidate cost."""
        candidates: list[Candidate] = []
        for size, entrants in self._entrants.items():
            for entrant in entrants:
                candidates += entrant.candidates.values()
                self._documents_seen[size, entrant.units] = list(documents)
        _, layer_tokens = self.trials.losses(candidates, np.concatenate(documents))
        return dict(zip(candidates, layer_tokens, strict=True))

    def _loss(self, entrant: Entrant, repair: str, documents: Sequence[np.ndarray]) -> float:
        losses = self.trials.values(entrant.candidates[repair])
        return float(self.judge_documents.mean_loss(losses, documents))

    def _best_repair(self, entrant: Entrant, documents: Sequence[np.ndarray]) -> str:
        return min(entrant.candidates, key=lambda repair: self._loss(entrant, repair, documents))

    def _ranked(
        self, entrants: Sequence[Entrant], documents: Sequence[np.ndarray]
    ) -> list[Entrant]:
        """Entrants by their least loss with any repair, the best first."""

        def least_loss(entrant: Entrant) -> tuple[float, list[str]]:
            repair = self._best_repair(entrant, documents)
            return self._loss(entrant, repair, documents), sorted(entrant.units)

        return sorted(entrants, key=least_loss)

    def _choose(self, size: int, seed: int) -> TournamentChoice:
        """The winner of one size."""
        documents = self.judge_documents.between(0, 1)
        finalists = self._entrants[size]
        winner = self._ranked(finalists, documents)[0]
        repair = self._best_repair(winner, documents)
        losses = [
            self.trials.values(candidate)
            for entrant in finalists
            for candidate in entrant.candidates.values()
        ]
        return {
            "units": sorted(winner.units, key=parse_unit),
            "member": winner.member,
            "repair": repair,
            "loss": self._loss(winner, repair, documents),
            "corrected_loss": corrected_loss(losses, self.judge_documents, seed),
            "n_samples": count_samples(documents),
            "repairs": {name: self._loss(winner, name, documents) for name in winner.candidates},
            "members": {
                member: self._compare(size, member, units, winner, repair)
                for member, units in self._proposals[size].items()
            },
        }

    def _compare(
        self, size: int, member: str, units: frozenset[str], winner: Entrant, repair: str
    ) -> MemberResult:
        """What a member's set loses, and how much more than the winner, on the documents that the set has seen."""
        documents = self._documents_seen[size, units]
        entrant = Entrant(member, units, self.form_candidates([units])[units])
        own_repair = self._best_repair(entrant, documents)
        own_loss = self._loss(entrant, own_repair, documents)
        return {
            "units": sorted(units, key=parse_unit),
            "repair": own_repair,
            "loss": own_loss,
            "more": own_loss - self._loss(winner, repair, documents),
            "n_samples": count_samples(documents),
        }


def count_samples(documents: Sequence[np.ndarray]) -> int:
    """How many samples of all calibrations there are."""
    return sum(len(indices) for indices in documents)


def corrected_loss(
    losses: Sequence[np.ndarray], judge_documents: JudgeDocuments, seed: int
) -> float:
    """The loss of the best of several candidates, not flattered by its being the best.

    losses: Of each candidate, (samples,).

    The last half of the judge documents, on which no set was dropped, is cut in two: the candidate with the least loss
    on one part is measured on the other. The mean over many cuts is that of a choice by these few documents.
    """
    generator = np.random.default_rng(seed)
    all_losses = np.array(losses)
    measured: list[float] = []
    for _ in range(N_CUTS):
        choosing: list[np.ndarray] = []
        measuring: list[np.ndarray] = []
        for indices in judge_documents.between(0.5, 1):
            drawn = generator.permutation(indices)
            middle = len(drawn) // 2
            # A single document has to do both.
            choosing.append(drawn[:middle] if middle else drawn)
            measuring.append(drawn[middle:])
        best = int(judge_documents.mean_loss(all_losses, choosing).argmin())
        measured.append(float(judge_documents.mean_loss(all_losses[best], measuring)))
    return float(np.mean(measured))


def exchange_units(
    units: frozenset[str],
    removable: Iterable[str],
    scores: Mapping[str, float],
    n_sets: int,
    prices: UnitPrices,
) -> list[frozenset[str]]:
    """At most `n_sets` sets with one unit exchanged, first those in which a low score replaces a high one by rank.

    If the new unit counts less than the old one, the lowest others are removed as well; if more, the highest ones may
    stay.
    """
    put_back = sorted(units, key=lambda unit: (-scores[unit], parse_unit(unit)))
    taken_out = sorted(set(removable) - units, key=lambda unit: (scores[unit], parse_unit(unit)))
    ranks = sorted(
        product(range(len(put_back)), range(len(taken_out))), key=lambda pair: (sum(pair), pair[0])
    )
    size = prices.size_of(units)
    sets: dict[frozenset[str], None] = {}
    for old_rank, new_rank in ranks:
        if len(sets) == n_sets:
            break
        old, new = put_back[old_rank], taken_out[new_rank]
        kept = [unit for unit in reversed(put_back) if unit != old]
        more = [unit for unit in taken_out if unit != new]
        changed = frozenset(prices.take_enough([new, *kept, *more], size))
        if prices.size_of(changed) >= size:
            sets[changed] = None
    return list(sets)
