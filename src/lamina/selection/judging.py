"""The search of strategy `portfolio`: some documents propose sets of units, others judge them.

`split_documents` separates these documents, `propose_sets` asks the members for sets, and
`RepairedSets` makes them candidates, bare and repaired. A `tournament` decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.data.splitting import index_documents
from lamina.engine import memory, sweep
from lamina.engine.candidates import Candidate
from lamina.engine.capture import capture_similarities
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.units import all_units, parse_unit
from lamina.options.metrics import METRICS
from lamina.options.selectors import Selector
from lamina.relevance import protocol
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import rank_units
from lamina.repair.patch_store import PatchStore
from lamina.selection import looped, removals
from lamina.selection.evaluator import Evaluator, Loss, loss_of
from lamina.selection.looped import candidate_boundaries
from lamina.selection.options import Loop
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence, protected_layers
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies.portfolio import BOUNDARY_METRIC, OF_LAYERS, both_sub_layers
from lamina.selection.tournament import (
    NONE,
    JudgeDocuments,
    Tournament,
    TournamentChoice,
    count_samples,
    exchange_units,
)
from lamina.selection.trials import (
    BASE,
    HELD_BACK,
    WINNER,
    Search,
    Trials,
    exclude_documents,
    split_samples,
)
from lamina.store import parquet

NO_PROPOSAL = (
    "no member of the portfolio proposes a set of this size. Give the calibration more samples, "
    "list other members, or protect fewer layers."
)

Proposals = dict[int, dict[str, frozenset[str]]]
"""Sets of units, by size and by the member that proposes them."""


def search_plans(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    options = request.selector
    member_calibration, judges_by_calibration = split_documents(request.calibrations, options)
    proposals, unit_ranks = propose_sets(request, member_calibration)
    refused_plans = [
        request.make_plan(plan_size, refused=NO_PROPOSAL)
        for plan_size in request.sizes
        if not proposals[plan_size]
    ]
    proposals = {plan_size: sets for plan_size, sets in proposals.items() if sets}
    if not proposals:
        return refused_plans, []

    # Repairs are fitted on samples that do not judge.
    judge_documents = draw_judges(judges_by_calibration, options)
    judge_samples = [sample for samples in judges_by_calibration.values() for sample in samples]
    n_task_samples = len(next(iter(judges_by_calibration.values())))
    repaired_sets = RepairedSets(
        request.model,
        request.calibrations,
        [sample.sequence() for sample in member_calibration.samples],
        [sample.sequence() for sample in judge_samples],
        request.loops,
        PatchStore(request.folder),
    )
    # The sets compete on the judge documents.
    token_budget = memory.choose_token_budget(
        request.token_budget, request.model, judge_samples, request.depth + 2
    )
    exchange = partial(
        exchange_units,
        removable=request.units,
        scores=unit_ranks,
        n_sets=options.exchanges,
        unit_prices=request.prices,
    )
    outputs = METRICS[options.metric].outputs
    with sweep.open_session(request.model, judge_samples, token_budget, outputs) as session:
        trials = _make_trials(request, session, judge_samples, n_task_samples)
        tournament = Tournament(trials, judge_documents, repaired_sets)
        tournament.play(proposals, exchange)
        choices = tournament.choose(options.seed)
        all_documents = judge_documents.select_between(0, 1)
        trials.measure_losses([Candidate()], np.concatenate(all_documents))
        base_losses = trials.get_losses(Candidate())

    # Plans of the winners, and rows of all that was measured.
    base_loss = float(judge_documents.average_losses(base_losses, all_documents))
    judges_text = len(judges_by_calibration) > 1
    plans = [
        _plan_of_choice(request, plan_size, choice, base_loss, judges_text)
        for plan_size, choice in choices.items()
    ]
    end_rows = _rows_of_ends(
        options.strategy, judge_documents, base_losses, choices, tournament.rows
    )
    rows = [row | {"evaluation": number} for number, row in enumerate(end_rows)]
    return sorted([*plans, *refused_plans], key=lambda plan: plan.removed), rows


def _make_trials(
    request: SearchRequest, session: Session, judge_samples: list[Sample], n_task_samples: int
) -> Trials:
    """The trials of sets on the judge documents, which go on from the log of the request."""

    def forget_scores(candidates: Sequence[Candidate]) -> None:
        # The trials remember losses; scores of every set ever tried would fill the memory.
        session.scores = Scores(judge_samples)

    return Trials(
        JudgeLosses(session, request.selector.metric, request.score, n_task_samples),
        len(judge_samples),
        request.log,
        request.origin,
        lambda: session.layer_tokens,
        forget_scores,
    )


def _plan_of_choice(
    request: SearchRequest,
    plan_size: int,
    choice: TournamentChoice,
    base_loss: float,
    judges_text: bool,
) -> Plan:
    """The plan of one size. A loss that mixes task and text cannot be turned into an accuracy."""
    bare_loss = choice["repairs"][NONE]
    metric = protocol.metric_named(request.selector.metric)
    accuracy_before = None if judges_text else metric.accuracy(base_loss)
    accuracy_after = None if judges_text else metric.accuracy(bare_loss)
    units = choice["units"]
    unmeasured = [None] * (len(units) - 1)
    recorded_choice = {name: value for name, value in choice.items() if name != "units"}
    return request.make_plan(
        plan_size,
        units=units,
        scores=[bare_loss] * len(units),
        choice={"base_loss": base_loss, **recorded_choice},
        accuracy_before=[accuracy_before, *unmeasured],
        accuracy_after=[*unmeasured, accuracy_after],
    )


def _rows_of_ends(
    strategy: str,
    judge_documents: JudgeDocuments,
    base_losses: np.ndarray,
    choices: Mapping[int, TournamentChoice],
    tournament_rows: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of table `searches`: the base model, all sets of the tournament, and the winners.

    A winner has a row on all judge documents, and one on the last half of them, corrected for being
    the best of many. So has the base model.
    """
    all_documents = judge_documents.select_between(0, 1)
    last_half = judge_documents.select_between(0.5, 1)
    sample_counts = {WINNER: count_samples(all_documents), HELD_BACK: count_samples(last_half)}

    def row(stage: str, loss: float, n_new: int = 0, **columns: Any) -> dict[str, Any]:
        return {
            "strategy": strategy,
            "stage": stage,
            "loss": loss,
            "n_samples": sample_counts[stage],
            "n_new": n_new,
            "kept": True,
            "layer_tokens": 0.0,
            **columns,
        }

    base_columns: dict[str, Any] = {"strategy": BASE, "removed": 0, "step": 0, "units": []}
    base_loss = float(judge_documents.average_losses(base_losses, all_documents))
    base_loss_last = float(judge_documents.average_losses(base_losses, last_half))
    search_rows = [
        row(WINNER, base_loss, sample_counts[WINNER], **base_columns),
        row(HELD_BACK, base_loss_last, **base_columns),
    ]
    search_rows += [{"strategy": strategy, **columns} for columns in tournament_rows]
    for plan_size, choice in choices.items():
        choice_columns: dict[str, Any] = {
            "removed": plan_size,
            "step": plan_size,
            "units": choice["units"],
            "member": choice["member"],
            "repair": choice["repair"],
        }
        search_rows.append(row(WINNER, choice["loss"], **choice_columns))
        search_rows.append(row(HELD_BACK, choice["corrected_loss"], **choice_columns))
    return search_rows


def split_documents(
    calibrations: Mapping[str, CalibrationSamples], portfolio: Any
) -> tuple[CalibrationSamples, dict[str, list[Sample]]]:
    """The calibration on which members propose, and the judging samples by calibration, task first.

    No document is on both sides, whatever its length or the calibration that has it.

    Raises LaminaError if there are too few documents.
    """
    own_calibration, calibration = next(iter(calibrations.items()))
    judges_by_calibration: dict[str, list[Sample]] = {}
    if portfolio.judge and portfolio.judge != own_calibration:
        choosing_samples = list(calibration.samples)
        judges_by_calibration[portfolio.judge] = list(calibrations[portfolio.judge].samples)
    else:
        seen, held_back = split_samples(
            calibration.sequences(), portfolio.held_back, portfolio.seed
        )
        choosing_samples = [calibration.samples[index] for index in seen]
        judges_by_calibration[own_calibration] = [calibration.samples[index] for index in held_back]
    for calibration_name in portfolio.also:
        if calibration_name not in judges_by_calibration:
            # Repairs may be fitted on the rest of it.
            text_calibration = calibrations[calibration_name]
            _, held_back = split_samples(
                text_calibration.sequences(), portfolio.held_back, portfolio.seed
            )
            judges_by_calibration[calibration_name] = [
                text_calibration.samples[index] for index in held_back
            ]
    judges_by_calibration = _without_documents_of(choosing_samples, judges_by_calibration)
    for calibration_name, samples in judges_by_calibration.items():
        if not samples:
            raise LaminaError(
                f"calibration '{calibration_name}' has no document left to judge a portfolio, "
                "because members proposed sets on all of them. Name another calibration, or give "
                "it more documents."
            )
    return CalibrationSamples(tuple(choosing_samples), calibration.facts), judges_by_calibration


def _without_documents_of(
    choosing_samples: Sequence[Sample], judges_by_calibration: Mapping[str, Sequence[Sample]]
) -> dict[str, list[Sample]]:
    """The judging samples whose documents, at any length, are not among those that choose."""
    sample_groups = [choosing_samples, *judges_by_calibration.values()]
    sequence_groups: list[list[tuple[int, ...]]] = []
    for samples in sample_groups:
        sequence_groups.append([sample.sequence() for sample in samples])
    document_numbers = index_documents(sequence_groups)
    choosing_documents = set(document_numbers[0])
    kept_judges: dict[str, list[Sample]] = {}
    for (name, samples), judge_documents in zip(
        judges_by_calibration.items(), document_numbers[1:], strict=True
    ):
        kept_judges[name] = [
            sample
            for sample, document in zip(samples, judge_documents, strict=True)
            if document not in choosing_documents
        ]
    return kept_judges


def draw_judges(
    judges_by_calibration: Mapping[str, Sequence[Sample]], portfolio: Any
) -> JudgeDocuments:
    """Judging samples in a drawn order; those of the task weigh 1, texts as `also` says."""
    generator = np.random.default_rng(portfolio.seed)
    group_ends = np.cumsum([0, *(len(samples) for samples in judges_by_calibration.values())])
    drawn_orders = [
        generator.permutation(np.arange(start, end))
        for start, end in zip(group_ends[:-1], group_ends[1:], strict=True)
    ]
    text_calibrations = list(judges_by_calibration)[1:]
    return JudgeDocuments(
        drawn_orders, [1.0, *(portfolio.also[name] for name in text_calibrations)]
    )


def propose_sets(
    request: SearchRequest, calibration: CalibrationSamples
) -> tuple[Proposals, dict[str, float]]:
    """The members' sets by size, and the rank of each unit when it is removed alone.

    The selector's metric, which also decides between sets, ranks the units.

    A member whose metric is undefined on the calibration proposes nothing.
    """
    proposer = _Proposer(request, calibration)
    proposals: Proposals = {plan_size: {} for plan_size in request.sizes}
    for plan_size in request.sizes:
        for member in request.selector.members:
            proposals[plan_size] |= proposer.propose(member, plan_size)
    for strategy_name in proposer.searching:
        for plan_size, candidate in _search_with_defaults(
            request, strategy_name, calibration
        ).items():
            proposals[plan_size][strategy_name] = candidate.removed
    ranked_units = proposer.ranked.get(request.selector.metric, ())
    ranked_names = [entry.unit for entry in ranked_units] or request.units
    return proposals, {unit: float(rank) for rank, unit in enumerate(ranked_names)}


@dataclass(frozen=True)
class _Space:
    """One kind of unit in which members propose; `suffix` marks it in the names of the members."""

    suffix: str
    kind: str


class _Proposer:
    """What members propose: metrics by a sweep of single removals, strategies by distances."""

    def __init__(self, request: SearchRequest, calibration: CalibrationSamples) -> None:
        member_names = request.selector.members
        self.request = request
        self.metrics = [name for name in member_names if name in METRICS]
        self.searching = [
            kind.title()
            for kind in Selector.kinds()
            if kind.SEARCHES and kind.title() in member_names
        ]
        self.strategies = [
            name for name in member_names if name not in self.metrics and name not in self.searching
        ]
        self.protected = protected_layers(request.selector.protect, request.depth)
        self.spaces = [_Space("", request.selector.units)]
        if request.selector.units == "both":
            self.spaces.append(_Space(OF_LAYERS, "layer"))
        self.ranked: dict[str, list[ScoredUnit]] = {}
        for space in self.spaces:
            self._rank_units(space, calibration)
        self.distances = StepEvidence()
        if self.strategies:
            self.distances = StepEvidence(distances=self._capture_distances(calibration))

    def propose(self, member: str, plan_size: int) -> dict[str, frozenset[str]]:
        """The sets that one member proposes at one size, by the name of the proposal."""
        proposed_sets: dict[str, frozenset[str]] = {}
        for space in self.spaces:
            proposal_name = member + space.suffix
            units = self._select_units(member, plan_size, space)
            if units:
                proposed_sets[proposal_name] = (
                    both_sub_layers(units) if space.suffix else frozenset(units)
                )
        return proposed_sets

    def _select_units(self, member: str, plan_size: int, space: _Space) -> list[str]:
        plan_request = PlanRequest(
            removed=plan_size,
            kind=space.kind,
            n_layers=self.request.depth,
            protected=self.protected,
            seed=self.request.selector.seed,
            attention_share=self.request.prices.attention_share,
        )
        if ranked_units := self.ranked.get(member + space.suffix):
            return [entry.unit for entry in plan_request.select_lowest_units(ranked_units)]
        if member not in self.strategies or space.kind == "both":
            return []
        strategy_options = Selector.from_options(
            {
                "strategy": member,
                "metric": BOUNDARY_METRIC,
                "protect": self.request.selector.protect,
            }
        )
        if plan_size > strategy_options.largest_removal(self.request.depth):
            return []
        empty_plan = Plan(
            **self.request.keys,
            removed=0,
            metric=BOUNDARY_METRIC,
            strategy=member,
            kind=space.kind,
        )
        strategy = import_module(f"{Selector.PACKAGE}.{member}")
        plan: Plan = strategy.choose(plan_request, self.distances, empty_plan)
        return plan.units

    def _rank_units(self, space: _Space, calibration: CalibrationSamples) -> None:
        """Rank the units of one kind by the members' metrics and the deciding one."""
        request = self.request
        units = all_units(request.depth, space.kind)
        removable_units = [unit for unit in units if parse_unit(unit)[0] not in self.protected]
        sweep_rows = removals.removal_rows(
            request.model,
            {"calibration": calibration},
            removable_units,
            token_budget=request.token_budget,
        )
        columns = from_table(parquet.from_rows("sweeps", sweep_rows, removed=0, **request.keys))
        chance_accuracy = calibration.facts["chance_accuracy"]
        context = Context(chance_accuracy, request.score, seed=request.selector.seed)
        for metric in dict.fromkeys([request.selector.metric, *self.metrics]):
            ranking = rank_units(columns, metric, context)
            if ranking.ranks is None:
                continue
            scores = [float(score) if np.isfinite(score) else None for score in ranking.draws[0]]
            by_rank = sorted(zip(ranking.ranks, columns.units, scores, strict=True))
            self.ranked[metric + space.suffix] = [
                ScoredUnit(unit, score) for _, unit, score in by_rank
            ]

    def _capture_distances(self, calibration: CalibrationSamples) -> dict[tuple[int, int], float]:
        """Distance of boundary start + span of the base model from boundary start."""
        request = self.request
        (column,) = METRICS[BOUNDARY_METRIC].columns
        token_budget = memory.choose_token_budget(
            request.token_budget, request.model, calibration.samples
        )
        similarity_rows = capture_similarities(request.model, calibration.sequences(), token_budget)
        distances: dict[tuple[int, int], float] = {}
        for row in similarity_rows:
            if row["span"]:
                distances[row["layer"], row["span"]] = dict(row)[column]  # type: ignore[assignment]
        return distances


def _search_with_defaults(
    request: SearchRequest, name: str, calibration: CalibrationSamples
) -> Mapping[int, Candidate]:
    """The sets that a searching strategy finds with its defaults, on all samples."""
    samples = calibration.samples
    metric = request.selector.metric
    default_options = Selector.from_options({"strategy": name, "metric": metric})
    token_budget = memory.choose_token_budget(
        request.token_budget, request.model, samples, request.depth + 2
    )
    outputs = METRICS[metric].outputs
    with sweep.open_session(request.model, samples, token_budget, outputs) as session:
        evaluator = Evaluator(session, loss_of(metric, request.score))
        trials = Trials(evaluator, len(samples), prices=request.prices)
        lengths = np.array([len(sequence) for sequence in calibration.sequences()])
        search = Search(name, trials, np.arange(len(samples)), lengths)
        strategy = import_module(f"{Selector.PACKAGE}.{name}")
        return dict(strategy.find(search, request.units, request.sizes, default_options))


class NatsPerToken(Loss):
    """The loss of text: nats per token."""

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """From columns of `sweeps`, (candidates, samples) each."""
        return values["nll"] / values["n_tokens"]


class JudgeLosses:
    """Losses of candidates: by the metric on the task's samples, per token on texts.

    The samples of the task come first.
    """

    def __init__(self, session: Session, metric: str, score: str, n_task_samples: int) -> None:
        self._task = Evaluator(session, loss_of(metric, score))
        self._text = Evaluator(session, NatsPerToken(protocol.metric_named(metric), score))
        self._n_task_samples = n_task_samples

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        """(candidates, samples)."""
        index_array = np.fromiter(sample_indices, dtype=int)
        is_task = index_array < self._n_task_samples
        judge_losses = np.empty((len(candidates), len(index_array)))
        for evaluator, is_judged in ((self._task, is_task), (self._text, ~is_task)):
            if is_judged.any():
                judge_losses[:, is_judged] = evaluator.measure_losses(
                    candidates, index_array[is_judged]
                )
        return judge_losses


class RepairedSets:
    """The candidates of sets, bare and with every repair, fitted on documents that do not judge.

    Patches, C² float32 numbers for each run of removed layers, wait in a store.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        calibrations: Mapping[str, CalibrationSamples],
        choosing_sequences: Sequence[Sequence[int]],
        judging_sequences: Sequence[Sequence[int]],
        loops: Mapping[str, Loop],
        patch_store: PatchStore | None = None,
    ) -> None:
        """Begin without patches.

        choosing_sequences: Token sequences of the variant's own calibration that propose sets.
        judging_sequences: Those that judge, of all calibrations.
        """
        self._model = model
        self._loops = loops
        self._depth = sweep.layer_count(model)
        self._store = patch_store or PatchStore()
        own_name = next(iter(calibrations))
        sequences = {
            repair_name: exclude_documents(calibration.sequences(), judging_sequences)
            for repair_name, calibration in calibrations.items()
        }
        sequences[own_name] = list(choosing_sequences)
        self._sources: dict[str, list[Source]] = {}
        self._patches: dict[str, dict[Boundary, Patch]] = {}
        for repair_name, repair_loop in loops.items():
            self._sources[repair_name] = [
                Source(sequences[calibration], weight)
                for calibration, weight in repair_loop.weights
            ]
            self._patches[repair_name] = {}

    def __call__(
        self, unit_sets: Iterable[frozenset[str]]
    ) -> dict[frozenset[str], dict[str, Candidate]]:
        bare_candidates = {units: Candidate(units) for units in unit_sets}
        self._fit_missing(candidate_boundaries(bare_candidates.values(), self._depth))
        candidates: dict[frozenset[str], dict[str, Candidate]] = {}
        for units, bare_candidate in bare_candidates.items():
            candidates[units] = {NONE: bare_candidate}
            for repair_name, patches in self._patches.items():
                own_patches = {
                    run: patches[run] for run in candidate_boundaries([bare_candidate], self._depth)
                }
                candidates[units][repair_name] = Candidate(units, own_patches)
        return candidates

    def _fit_missing(self, runs: Sequence[Boundary]) -> None:
        """Fit the patches of every repair for those runs that have none yet."""
        for repair_name, repair_loop in self._loops.items():
            fitted_patches = self._patches[repair_name]
            missing_runs = [run for run in runs if run not in fitted_patches]
            if missing_runs:
                fitted_patches |= looped.fit_patches(
                    self._model,
                    self._sources[repair_name],
                    missing_runs,
                    repair_loop.repair,
                    repair_loop.seed,
                    self._store,
                )
