"""The search of strategy `portfolio`: whole sets of units, proposed on some documents and judged on others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

Proposals = dict[int, dict[str, frozenset[str]]]
"""Sets of units, by size and by the member that proposes them."""


def search_plans(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    options = request.selector
    choosing, judging = split_documents(request.calibrations, options)
    proposals, unit_ranks = propose_sets(request, choosing)
    if not any(proposals.values()):
        refused = (
            "no member of the portfolio has a score on this calibration. Give it more samples, or "
            "list other members."
        )
        return [request.plan(size, refused=refused) for size in request.sizes], []
    judge_documents = draw_judges(judging, options)
    judge_samples = [sample for samples in judging.values() for sample in samples]
    n_task_samples = len(next(iter(judging.values())))
    candidates_of_sets = RepairedSets(
        request.model,
        request.calibrations,
        [sample.sequence() for sample in choosing.samples],
        [sample.sequence() for sample in judge_samples],
        request.loops,
        PatchStore(request.folder),
    )
    token_budget = memory.choose_token_budget(
        request.token_budget, request.model, judge_samples, request.depth + 2
    )
    outputs = METRICS[options.metric].outputs
    with sweep.open_session(request.model, judge_samples, token_budget, outputs) as session:

        def forget_scores(candidates: Sequence[Candidate]) -> None:
            # The trials remember losses; scores of every set ever tried would fill the memory.
            session.scores = Scores(judge_samples)

        def exchange(units: frozenset[str]) -> list[frozenset[str]]:
            return exchange_units(
                units, request.units, unit_ranks, options.exchanges, request.prices
            )

        trials = Trials(
            JudgeLosses(session, options.metric, request.score, n_task_samples),
            len(judge_samples),
            request.log,
            request.origin,
            lambda: session.layer_tokens,
            forget_scores,
        )
        tournament = Tournament(trials, judge_documents, candidates_of_sets)
        tournament.play(proposals, exchange)
        choices = tournament.choose(options.seed)
        trials.losses([Candidate()], np.concatenate(judge_documents.between(0, 1)))
        base_losses = trials.values(Candidate())
    base_loss = float(judge_documents.mean_loss(base_losses, judge_documents.between(0, 1)))
    plans = [
        _plan_of_choice(request, size, choice, base_loss, judges_text=len(judging) > 1)
        for size, choice in choices.items()
    ]
    rows = _rows_of_ends(options.strategy, judge_documents, base_losses, choices, tournament.rows)
    return plans, [row | {"evaluation": number} for number, row in enumerate(rows)]


def _plan_of_choice(
    request: SearchRequest, size: int, choice: TournamentChoice, base_loss: float, judges_text: bool
) -> Plan:
    """The plan of one size. Losses of a task and of text together are no accuracies."""
    bare_loss = choice["repairs"][NONE]
    metric = protocol.metric_named(request.selector.metric)
    accuracy_before = None if judges_text else metric.accuracy(base_loss)
    accuracy_after = None if judges_text else metric.accuracy(bare_loss)
    units = choice["units"]
    unmeasured = [None] * (len(units) - 1)
    recorded = {name: value for name, value in choice.items() if name != "units"}
    return request.plan(
        size,
        units=units,
        scores=[bare_loss] * len(units),
        choice={"base_loss": base_loss, **recorded},
        accuracy_before=[accuracy_before, *unmeasured],
        accuracy_after=[*unmeasured, accuracy_after],
    )


def _rows_of_ends(
    strategy: str,
    judge_documents: JudgeDocuments,
    base_losses: np.ndarray,
    choices: Mapping[int, TournamentChoice],
    compared: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of table `searches`: the base model, all sets that were `compared`, and the winners.

    A winner has a row on all judge documents, and one that is corrected for its being the best of many on the last half
    of them; so has the base model.
    """
    everything = judge_documents.between(0, 1)
    last_half = judge_documents.between(0.5, 1)
    counts = {WINNER: count_samples(everything), HELD_BACK: count_samples(last_half)}

    def row(stage: str, loss: float, n_new: int = 0, **columns: Any) -> dict[str, Any]:
        return {
            "strategy": strategy,
            "stage": stage,
            "loss": loss,
            "n_samples": counts[stage],
            "n_new": n_new,
            "kept": True,
            "layer_tokens": 0.0,
            **columns,
        }

    base: dict[str, Any] = {"strategy": BASE, "removed": 0, "step": 0, "units": []}
    base_loss = float(judge_documents.mean_loss(base_losses, everything))
    base_loss_last = float(judge_documents.mean_loss(base_losses, last_half))
    rows = [
        row(WINNER, base_loss, counts[WINNER], **base),
        row(HELD_BACK, base_loss_last, **base),
    ]
    rows += [{"strategy": strategy, **columns} for columns in compared]
    for size, choice in choices.items():
        chosen: dict[str, Any] = {
            "removed": size,
            "step": size,
            "units": choice["units"],
            "member": choice["member"],
            "repair": choice["repair"],
        }
        rows.append(row(WINNER, choice["loss"], **chosen))
        rows.append(row(HELD_BACK, choice["corrected_loss"], **chosen))
    return rows


def split_documents(
    calibrations: Mapping[str, CalibrationSamples], options: Any
) -> tuple[CalibrationSamples, dict[str, list[Sample]]]:
    """The calibration that chooses, and the samples that judge by their calibration, first those of the task.

    No document is on both sides, whatever its length or the calibration that has it.

    Raises LaminaError if there are too few documents.
    """
    own_name, calibration = next(iter(calibrations.items()))
    judging: dict[str, list[Sample]] = {}
    if options.judge and options.judge != own_name:
        choosing = list(calibration.samples)
        judging[options.judge] = list(calibrations[options.judge].samples)
    else:
        seen, held_back = split_samples(calibration.sequences(), options.held_back, options.seed)
        choosing = [calibration.samples[index] for index in seen]
        judging[own_name] = [calibration.samples[index] for index in held_back]
    for name in options.also:
        if name not in judging:
            # Repairs may be fitted on the rest of it.
            text = calibrations[name]
            _, held_back = split_samples(text.sequences(), options.held_back, options.seed)
            judging[name] = [text.samples[index] for index in held_back]
    judging = _without_documents_of(choosing, judging)
    for name, samples in judging.items():
        if not samples:
            raise LaminaError(
                f"calibration '{name}' has no document left to judge a portfolio: all of them took "
                "part in the choice. Name another one, or give it more documents."
            )
    return CalibrationSamples(tuple(choosing), calibration.facts), judging


def _without_documents_of(
    choosing: Sequence[Sample], judging: Mapping[str, Sequence[Sample]]
) -> dict[str, list[Sample]]:
    """The judging samples whose documents, at any length, are not among those that choose."""
    groups = [choosing, *judging.values()]
    numbered = index_documents([[sample.sequence() for sample in group] for group in groups])
    choosing_documents = set(numbered[0])
    kept: dict[str, list[Sample]] = {}
    for (name, samples), numbers in zip(judging.items(), numbered[1:], strict=True):
        kept[name] = [
            sample
            for sample, number in zip(samples, numbers, strict=True)
            if number not in choosing_documents
        ]
    return kept


def draw_judges(judging: Mapping[str, Sequence[Sample]], options: Any) -> JudgeDocuments:
    """The order in which samples judge, and their weights: 1 for the task's, and those of `also` for texts."""
    generator = np.random.default_rng(options.seed)
    ends = np.cumsum([0, *(len(samples) for samples in judging.values())])
    orders = [
        generator.permutation(np.arange(start, end))
        for start, end in zip(ends[:-1], ends[1:], strict=True)
    ]
    texts = list(judging)[1:]
    return JudgeDocuments(orders, [1.0, *(options.also[name] for name in texts)])


def propose_sets(
    request: SearchRequest, calibration: CalibrationSamples
) -> tuple[Proposals, dict[str, float]]:
    """The sets of the members by size, and the rank of each unit's single removal by the deciding metric.

    A member whose metric is undefined on the calibration proposes nothing.
    """
    proposer = _Proposer(request, calibration)
    proposals: Proposals = {size: {} for size in request.sizes}
    for size in request.sizes:
        for member in request.selector.members:
            proposals[size] |= proposer.sets_of(member, size)
    for name in proposer.searching:
        for size, candidate in _search_with_defaults(request, name, calibration).items():
            proposals[size][name] = candidate.removed
    ranked = proposer.ranked.get(request.selector.metric, ())
    units = [entry.unit for entry in ranked] or request.units
    return proposals, {unit: float(rank) for rank, unit in enumerate(units)}


@dataclass(frozen=True)
class _Space:
    """One kind of unit in which members propose; `suffix` marks it in the names of the members."""

    suffix: str
    kind: str


class _Proposer:
    """What members of a portfolio propose: metrics by one sweep of single removals, strategies by distances."""

    def __init__(self, request: SearchRequest, calibration: CalibrationSamples) -> None:
        members = request.selector.members
        self.request = request
        self.metrics = [name for name in members if name in METRICS]
        self.searching = [
            kind.title() for kind in Selector.kinds() if kind.SEARCHES and kind.title() in members
        ]
        self.strategies = [
            name for name in members if name not in self.metrics and name not in self.searching
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

    def sets_of(self, member: str, size: int) -> dict[str, frozenset[str]]:
        """The sets that a metric or a strategy proposes at one size, by the name under which it proposes them."""
        sets: dict[str, frozenset[str]] = {}
        for space in self.spaces:
            name = member + space.suffix
            units = self._units_of(member, size, space)
            if units:
                sets[name] = both_sub_layers(units) if space.suffix else frozenset(units)
        return sets

    def _units_of(self, member: str, size: int, space: _Space) -> list[str]:
        plan_request = PlanRequest(
            removed=size,
            kind=space.kind,
            n_layers=self.request.depth,
            protected=self.protected,
            seed=self.request.selector.seed,
            attention_share=self.request.prices.attention_share,
        )
        if ranked := self.ranked.get(member + space.suffix):
            return [entry.unit for entry in plan_request.lowest_units(ranked)]
        if member not in self.strategies or space.kind == "both":
            return []
        options = Selector.from_options(
            {
                "strategy": member,
                "metric": BOUNDARY_METRIC,
                "protect": self.request.selector.protect,
            }
        )
        if size > options.largest_removal(self.request.depth):
            return []
        before = Plan(
            **self.request.keys,
            removed=0,
            metric=BOUNDARY_METRIC,
            strategy=member,
            kind=space.kind,
        )
        strategy = import_module(f"{Selector.PACKAGE}.{member}")
        plan: Plan = strategy.choose(plan_request, self.distances, before)
        return plan.units

    def _rank_units(self, space: _Space, calibration: CalibrationSamples) -> None:
        """Rank the units of one kind by the members' metrics and the deciding one."""
        request = self.request
        units = all_units(request.depth, space.kind)
        removable = [unit for unit in units if parse_unit(unit)[0] not in self.protected]
        swept = removals.removal_rows(
            request.model,
            {"calibration": calibration},
            removable,
            token_budget=request.token_budget,
        )
        columns = from_table(parquet.from_rows("sweeps", swept, removed=0, **request.keys))
        chance = calibration.facts["chance_accuracy"]
        context = Context(chance, request.score, seed=request.selector.seed)
        for metric in dict.fromkeys([request.selector.metric, *self.metrics]):
            order = rank_units(columns, metric, context)
            if order.ranks is None:
                continue
            scores = [float(score) if np.isfinite(score) else None for score in order.draws[0]]
            by_rank = sorted(zip(order.ranks, columns.units, scores, strict=True))
            self.ranked[metric + space.suffix] = [
                ScoredUnit(unit, score) for _, unit, score in by_rank
            ]

    def _capture_distances(self, calibration: CalibrationSamples) -> dict[tuple[int, int], float]:
        """The distance of boundary start + span from boundary start of the base model, by (start, span)."""
        request = self.request
        (column,) = METRICS[BOUNDARY_METRIC].columns
        token_budget = memory.choose_token_budget(
            request.token_budget, request.model, calibration.samples
        )
        captured = capture_similarities(request.model, calibration.sequences(), token_budget)
        distances: dict[tuple[int, int], float] = {}
        for row in captured:
            if row["span"]:
                distances[row["layer"], row["span"]] = dict(row)[column]  # type: ignore[assignment]
        return distances


def _search_with_defaults(
    request: SearchRequest, name: str, calibration: CalibrationSamples
) -> Mapping[int, Candidate]:
    """The sets that a searching strategy finds with its defaults, on all samples."""
    samples = calibration.samples
    metric = request.selector.metric
    options = Selector.from_options({"strategy": name, "metric": metric})
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
        return dict(strategy.find(search, request.units, request.sizes, options))


class NatsPerToken(Loss):
    """The loss of text: nats per token."""

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """From columns of `sweeps`, (candidates, samples) each."""
        return values["nll"] / values["n_tokens"]


class JudgeLosses:
    """Losses of candidates: by the metric on the task's samples, which come first, and per token on texts."""

    def __init__(self, session: Session, metric: str, score: str, n_task_samples: int) -> None:
        self._task = Evaluator(session, loss_of(metric, score))
        self._text = Evaluator(session, NatsPerToken(protocol.metric_named(metric), score))
        self._n_task_samples = n_task_samples

    def losses(self, candidates: Sequence[Candidate], sample_indices: Iterable[int]) -> np.ndarray:
        """(candidates, samples)."""
        indices = np.fromiter(sample_indices, dtype=int)
        is_task = indices < self._n_task_samples
        losses = np.empty((len(candidates), len(indices)))
        for evaluator, is_own in ((self._task, is_task), (self._text, ~is_task)):
            if is_own.any():
                losses[:, is_own] = evaluator.losses(candidates, indices[is_own])
        return losses


class RepairedSets:
    """Gives the candidates of sets, bare and with every repair, whose patches are fitted on documents that do not judge.

    Patches, C² float32 numbers for each run of removed layers, wait in a store.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        calibrations: Mapping[str, CalibrationSamples],
        choosing: Sequence[Sequence[int]],
        judging: Sequence[Sequence[int]],
        loops: Mapping[str, Loop],
        store: PatchStore | None = None,
    ) -> None:
        """`choosing` and `judging` are token sequences of the variant's own calibration, and of all judges."""
        self._model = model
        self._loops = loops
        self._depth = sweep.layer_count(model)
        self._store = store or PatchStore()
        own_name = next(iter(calibrations))
        sequences = {
            name: exclude_documents(calibration.sequences(), judging)
            for name, calibration in calibrations.items()
        }
        sequences[own_name] = list(choosing)
        self._sources = {
            name: [Source(sequences[calibration], weight) for calibration, weight in loop.weights]
            for name, loop in loops.items()
        }
        self._patches: dict[str, dict[Boundary, Patch]] = {name: {} for name in loops}

    def __call__(
        self, sets: Iterable[frozenset[str]]
    ) -> dict[frozenset[str], dict[str, Candidate]]:
        bare_candidates = {units: Candidate(units) for units in sets}
        self._fit_missing(candidate_boundaries(bare_candidates.values(), self._depth))
        candidates: dict[frozenset[str], dict[str, Candidate]] = {}
        for units, bare in bare_candidates.items():
            candidates[units] = {NONE: bare}
            for name, patches in self._patches.items():
                own_patches = {
                    run: patches[run] for run in candidate_boundaries([bare], self._depth)
                }
                candidates[units][name] = Candidate(units, own_patches)
        return candidates

    def _fit_missing(self, runs: Sequence[Boundary]) -> None:
        """Fit the patches of every repair for those runs that have none yet."""
        for name, loop in self._loops.items():
            known = self._patches[name]
            missing = [run for run in runs if run not in known]
            if missing:
                known |= looped.fit_patches(
                    self._model,
                    self._sources[name],
                    missing,
                    loop.repair,
                    loop.seed,
                    self._store,
                )
