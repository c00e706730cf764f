"""Proposed sets of units compete on judge documents: the heart of strategy `portfolio`.

`lamina.selection.judging` provides the proposals, the judge documents and the repairs. This module
knows nothing of models.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NotRequired, TypedDict

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.models.units import parse_unit, removals_among
from lamina.selection.plans import UnitPrices
from lamina.selection.trials import Trials

# Of each round: (share of the judge documents, number of sets of each size that survive).
ROUNDS = ((0.25, 8), (0.5, 4), (1.0, 1))
N_FINALISTS = ROUNDS[-2][1]  # sets of each size that enter the last round
N_EXCHANGED = 2  # sets of each size around which exchanges are tried
N_CUTS = 200  # splits of the last judge documents, to correct the winner's loss
EXCHANGE = "exchange"
NONE = "none"


@dataclass(frozen=True)
class Entrant:
    """A set of units that competes at one size."""

    member: str
    """The member that proposed the set."""
    units: frozenset[str]
    candidates: Mapping[str, Candidate]
    """The set with each repair, by the repair's name; the bare set under `none`."""


@dataclass(frozen=True)
class JudgeDocuments:
    """The judge samples by calibration, in the random order in which they judge."""

    samples: Sequence[np.ndarray]
    """Indices of the samples of each calibration."""
    weights: Sequence[float]
    """Weight of the mean loss of each calibration."""

    def select_between(self, start: float, end: float) -> list[np.ndarray]:
        """The samples between two shares of each calibration, at least one per calibration."""
        selected_samples: list[np.ndarray] = []
        for indices in self.samples:
            n_samples = len(indices)
            first_index = min(round(start * n_samples), n_samples - 1)
            end_index = max(1, round(end * n_samples))
            selected_samples.append(indices[first_index:end_index])
        return selected_samples

    def average_losses(
        self, losses: np.ndarray, judging_samples: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Mean losses, weighted and summed over calibrations: (…, samples) to (…,)."""
        mean_losses = (losses[..., indices].mean(axis=-1) for indices in judging_samples)
        return sum(
            weight * mean_loss for mean_loss, weight in zip(mean_losses, self.weights, strict=True)
        )


class MemberResult(TypedDict):
    """The loss of a member's set with its best repair, on all documents that measured it."""

    units: list[str]
    repair: str
    loss: float
    more: float
    """The loss minus the winner's loss on the same documents."""
    n_samples: int


class WrittenResult(TypedDict):
    """How many answers one of the last sets writes correctly."""

    units: list[str]
    repair: str
    right: float
    """Share of the judging questions that it answers right."""


class TournamentChoice(TypedDict):
    """The winning set of one size, as a plan records it."""

    units: list[str]
    member: str
    repair: str
    loss: float
    corrected_loss: float
    """The loss, corrected for the choice of the best of many (`correct_loss`)."""
    n_samples: int
    repairs: dict[str, float]
    """The winner's loss with each repair, and bare under `none`."""
    members: dict[str, MemberResult]
    written: NotRequired[list[WrittenResult]]
    """Results of the last sets, bare and with each repair, if written answers decide."""
    note: NotRequired[str]


JudgeAnswers = Callable[[Sequence[Candidate]], np.ndarray]
"""Judges the written answers of candidates: 1 if right, else 0, (candidates, questions)."""

FormCandidates = Callable[
    [Iterable[frozenset[str]]], Mapping[frozenset[str], Mapping[str, Candidate]]
]
"""Makes the candidates of sets, by repair, the bare ones under `none`. It fits missing repairs."""


class Tournament:
    """Sets of units compete on judge documents: on few documents first, the best sets on more.

    Each set is measured bare and with every repair; its loss is the least of these. Sizes compete
    separately but are measured together, since their sets share passes.
    """

    def __init__(
        self, trials: Trials, judge_documents: JudgeDocuments, form_candidates: FormCandidates
    ) -> None:
        self.trials = trials
        self.judge_documents = judge_documents
        self.form_candidates = form_candidates
        self.rows: list[dict[str, Any]] = []
        """Rows of table `searches`, without its keys."""
        self._entrants: dict[int, list[Entrant]] = {}
        self._proposals: dict[int, Mapping[str, frozenset[str]]] = {}
        self._documents_seen: dict[tuple[int, frozenset[str]], list[np.ndarray]] = {}
        self._right_shares: dict[Candidate, float] = {}

    def play(
        self,
        proposals: Mapping[int, Mapping[str, frozenset[str]]],
        exchange: Callable[[frozenset[str]], Sequence[frozenset[str]]],
    ) -> None:
        """Play all rounds.

        proposals: The sets of the members, by size.
        exchange: Gives the sets to try around a given set. They enter in the first round.
        """
        self._proposals = dict(proposals)
        self._entrants = {plan_size: [] for plan_size in proposals}
        self._admit({plan_size: list(sets.items()) for plan_size, sets in proposals.items()})
        n_samples_before = 0
        for round_number, (share, n_survivors) in enumerate(ROUNDS, start=1):
            documents = self.judge_documents.select_between(0, share)
            layer_tokens = self._measure(documents)
            if round_number == 1:
                self._admit(self._propose_exchanges(documents, exchange))
                for candidate, layer_token_cost in self._measure(documents).items():
                    layer_tokens[candidate] = layer_tokens.get(candidate, 0.0) + layer_token_cost

            n_samples = count_samples(documents)
            round_columns = {
                "stage": str(round_number),
                "n_samples": n_samples,
                "n_new": n_samples - n_samples_before,
            }
            for plan_size, entrants in self._entrants.items():
                survivors = self._rank_entrants(entrants, documents)[:n_survivors]
                for entrant in entrants:
                    columns = {
                        "removed": plan_size,
                        "step": plan_size,
                        "kept": entrant in survivors,
                        **round_columns,
                    }
                    self._record(entrant, documents, layer_tokens, columns)
                # All finalists are needed to correct the winner's loss, so they stay.
                if n_survivors > 1:
                    self._entrants[plan_size] = survivors
            n_samples_before = n_samples

    def _record(
        self,
        entrant: Entrant,
        documents: Sequence[np.ndarray],
        layer_tokens: Mapping[Candidate, float],
        columns: Mapping[str, Any],
    ) -> None:
        """Add an entrant's rows of one round: one bare, and one for each repair."""
        for repair, candidate in entrant.candidates.items():
            self.rows.append(
                {
                    **columns,
                    "units": sorted(entrant.units, key=parse_unit),
                    "member": entrant.member,
                    "repair": repair,
                    "layer_tokens": layer_tokens[candidate],
                    "loss": self._average_loss(entrant, repair, documents),
                }
            )

    def choose(
        self, seed: int, judge_answers: JudgeAnswers | None = None
    ) -> dict[int, TournamentChoice]:
        """The set and repair of each size with the least loss on all judge documents.

        seed: Draws the cuts that correct this loss.
        judge_answers: If given, the set and repair with the most right answers win, and the loss
            breaks ties.
        """
        if judge_answers:
            finalists = [
                candidate
                for entrants in self._entrants.values()
                for entrant in entrants
                for candidate in entrant.candidates.values()
            ]
            right_shares = judge_answers(finalists).mean(axis=1)
            self._right_shares = dict(zip(finalists, right_shares.tolist(), strict=True))
        choices = {plan_size: self._choose_set(plan_size, seed) for plan_size in self._entrants}
        for plan_size, choice in choices.items():
            better_sizes = [
                larger_size
                for larger_size in sorted(choices)
                if larger_size > plan_size and choices[larger_size]["loss"] < choice["loss"]
            ]
            if better_sizes:
                choice["note"] = (
                    f"At size {better_sizes[0]} the model loses less on these documents than at "
                    f"size {plan_size}."
                )
        return choices

    def _admit(self, sets: Mapping[int, Sequence[tuple[str, frozenset[str]]]]) -> None:
        """Enter sets, with the members that propose them, by size.

        A set that is already in keeps the member that proposed it first.
        """
        all_sets = [units for proposed in sets.values() for _, units in proposed]
        candidates = self.form_candidates(all_sets)
        for plan_size, proposed in sets.items():
            for member, units in proposed:
                if units not in {entrant.units for entrant in self._entrants[plan_size]}:
                    self._entrants[plan_size].append(Entrant(member, units, candidates[units]))

    def _propose_exchanges(
        self,
        documents: Sequence[np.ndarray],
        exchange: Callable[[frozenset[str]], Sequence[frozenset[str]]],
    ) -> dict[int, list[tuple[str, frozenset[str]]]]:
        """The sets around the best ones of each size."""
        exchanged_sets: dict[int, list[tuple[str, frozenset[str]]]] = {}
        for plan_size, entrants in self._entrants.items():
            exchanged_sets[plan_size] = []
            for entrant in self._rank_entrants(entrants, documents)[:N_EXCHANGED]:
                exchanged_sets[plan_size] += [
                    (EXCHANGE, units) for units in exchange(entrant.units)
                ]
        return exchanged_sets

    def _measure(self, documents: Sequence[np.ndarray]) -> dict[Candidate, float]:
        """Measure all sets on these documents; return the layer-tokens that each candidate cost."""
        candidates: list[Candidate] = []
        for plan_size, entrants in self._entrants.items():
            for entrant in entrants:
                candidates += entrant.candidates.values()
                self._documents_seen[plan_size, entrant.units] = list(documents)
        _, layer_tokens = self.trials.measure_losses(candidates, np.concatenate(documents))
        return dict(zip(candidates, layer_tokens, strict=True))

    def _average_loss(
        self, entrant: Entrant, repair: str, documents: Sequence[np.ndarray]
    ) -> float:
        losses = self.trials.get_losses(entrant.candidates[repair])
        return float(self.judge_documents.average_losses(losses, documents))

    def _find_best_repair(self, entrant: Entrant, documents: Sequence[np.ndarray]) -> str:
        return min(
            entrant.candidates, key=lambda repair: self._average_loss(entrant, repair, documents)
        )

    def _rank_entrants(
        self, entrants: Sequence[Entrant], documents: Sequence[np.ndarray]
    ) -> list[Entrant]:
        """Entrants by their least loss over all repairs, the best first."""

        def least_loss(entrant: Entrant) -> tuple[float, list[str]]:
            repair = self._find_best_repair(entrant, documents)
            return self._average_loss(entrant, repair, documents), sorted(entrant.units)

        return sorted(entrants, key=least_loss)

    def _choose_set(self, plan_size: int, seed: int) -> TournamentChoice:
        """The winner of one size."""
        documents = self.judge_documents.select_between(0, 1)
        finalists = self._entrants[plan_size]
        winner, repair = self._find_winner(finalists, documents)
        compared = [candidate for entrant in finalists for candidate in entrant.candidates.values()]
        if self._right_shares:
            # The loss did not choose the winner, so it is not flattering and needs no correction.
            compared = [winner.candidates[repair]]
        finalist_losses = [self.trials.get_losses(candidate) for candidate in compared]
        choice: TournamentChoice = {
            "units": sorted(winner.units, key=parse_unit),
            "member": winner.member,
            "repair": repair,
            "loss": self._average_loss(winner, repair, documents),
            "corrected_loss": correct_loss(finalist_losses, self.judge_documents, seed),
            "n_samples": count_samples(documents),
            "repairs": {
                name: self._average_loss(winner, name, documents) for name in winner.candidates
            },
            "members": {
                member: self._compare(plan_size, member, units, winner, repair)
                for member, units in self._proposals[plan_size].items()
            },
        }
        if self._right_shares:
            choice["written"] = self._list_written(finalists)
        return choice

    def _find_winner(
        self, finalists: Sequence[Entrant], documents: Sequence[np.ndarray]
    ) -> tuple[Entrant, str]:
        """The set and repair with the most right answers, if known, else with the least loss."""

        def rank(form: tuple[Entrant, str]) -> tuple[float, float, list[str]]:
            entrant, repair = form
            right_share = self._right_shares.get(entrant.candidates[repair], 0.0)
            loss = self._average_loss(entrant, repair, documents)
            return -right_share, loss, sorted(entrant.units)

        forms = [(entrant, repair) for entrant in finalists for repair in entrant.candidates]
        return min(forms, key=rank)

    def _list_written(self, finalists: Sequence[Entrant]) -> list[WrittenResult]:
        results: list[WrittenResult] = []
        for entrant in finalists:
            for repair, candidate in entrant.candidates.items():
                units = sorted(entrant.units, key=parse_unit)
                right_share = self._right_shares[candidate]
                results.append({"units": units, "repair": repair, "right": right_share})
        return results

    def _compare(
        self,
        plan_size: int,
        member: str,
        member_units: frozenset[str],
        winner: Entrant,
        repair: str,
    ) -> MemberResult:
        """Compare a member's set with the winner, on the documents that measured this set."""
        documents = self._documents_seen[plan_size, member_units]
        entrant = Entrant(member, member_units, self.form_candidates([member_units])[member_units])
        own_repair = self._find_best_repair(entrant, documents)
        own_loss = self._average_loss(entrant, own_repair, documents)
        return {
            "units": sorted(member_units, key=parse_unit),
            "repair": own_repair,
            "loss": own_loss,
            "more": own_loss - self._average_loss(winner, repair, documents),
            "n_samples": count_samples(documents),
        }


def count_samples(documents: Sequence[np.ndarray]) -> int:
    """The number of samples, over all calibrations."""
    return sum(len(indices) for indices in documents)


def correct_loss(
    candidate_losses: Sequence[np.ndarray], judge_documents: JudgeDocuments, seed: int
) -> float:
    """The loss of the best of several candidates, corrected for being picked as the best.

    candidate_losses: The losses (samples,) of each candidate.

    No set was dropped on the last half of the judge documents. This half is split in two: the
    candidate with the least loss on one part is measured on the other. The mean over many splits
    estimates the loss of a choice by these few documents.
    """
    generator = np.random.default_rng(seed)
    all_losses = np.array(candidate_losses)
    measured_losses: list[float] = []
    for _ in range(N_CUTS):
        choosing_documents: list[np.ndarray] = []
        measuring_documents: list[np.ndarray] = []
        for indices in judge_documents.select_between(0.5, 1):
            drawn_order = generator.permutation(indices)
            middle = len(drawn_order) // 2
            # A single document serves as both parts.
            choosing_documents.append(drawn_order[:middle] if middle else drawn_order)
            measuring_documents.append(drawn_order[middle:])
        best_index = int(judge_documents.average_losses(all_losses, choosing_documents).argmin())
        measured_losses.append(
            float(judge_documents.average_losses(all_losses[best_index], measuring_documents))
        )
    return float(np.mean(measured_losses))


def exchange_units(
    units: frozenset[str],
    removable: Iterable[str],
    scores: Mapping[str, float],
    n_sets: int,
    unit_prices: UnitPrices,
) -> list[frozenset[str]]:
    """At most `n_sets` sets with one unit exchanged, lowest new and highest old scores first.

    If the new unit counts less than the old one, the lowest other units are removed as well. If it
    counts more, the highest ones may stay. Layers that run again or elsewhere do so in all sets.
    """
    removals = frozenset(removals_among(units))
    moves = Candidate(units - removals)
    removed_units = sorted(removals, key=lambda unit: (-scores[unit], parse_unit(unit)))
    kept_units = [unit for unit in removable if unit not in units and moves.has_room_for(unit)]
    kept_units.sort(key=lambda unit: (scores[unit], parse_unit(unit)))
    rank_pairs = sorted(
        product(range(len(removed_units)), range(len(kept_units))),
        key=lambda pair: (sum(pair), pair[0]),
    )
    size = unit_prices.size_of(removals)
    exchanged_sets: dict[frozenset[str], None] = {}
    for old_rank, new_rank in rank_pairs:
        if len(exchanged_sets) == n_sets:
            break
        old_unit = removed_units[old_rank]
        new_unit = kept_units[new_rank]
        other_removed = [unit for unit in reversed(removed_units) if unit != old_unit]
        other_kept = [unit for unit in kept_units if unit != new_unit]
        exchanged_set = frozenset(
            unit_prices.take_enough([new_unit, *other_removed, *other_kept], size)
        )
        if unit_prices.size_of(exchanged_set) >= size:
            exchanged_sets[exchanged_set | moves.edits] = None
    return list(exchanged_sets)
