"""The sets of units that a portfolio's members propose: metrics, strategies and searches."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from lamina.data.calibrations import CalibrationSamples
from lamina.engine import memory, sweep
from lamina.engine.candidates import Candidate
from lamina.engine.capture import capture_similarities
from lamina.models import workload
from lamina.models.units import all_units, parse_unit, units_of_layers
from lamina.options.metrics import METRICS
from lamina.options.selectors import Selector
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import rank_units
from lamina.selection import removals
from lamina.selection.evaluator import Evaluator
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence, protected_layers
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies.portfolio import BOUNDARY_METRIC, OF_LAYERS, both_sub_layers
from lamina.selection.trials import Search, Trials
from lamina.store import parquet

Proposals = dict[int, dict[str, frozenset[str]]]
"""Sets of units, by size and then by the member that proposes them."""


def propose_sets(
    request: SearchRequest, calibration: CalibrationSamples
) -> tuple[Proposals, dict[str, float]]:
    """The members' sets by size, and the rank of each unit when it is removed alone.

    The units are ranked by the selector's metric, which also decides between sets.

    A member whose metric is undefined on the calibration proposes nothing.
    """
    proposer = _Proposer(request, calibration)
    proposals: Proposals = {plan_size: {} for plan_size in request.sizes}
    for plan_size in request.sizes:
        for member in request.selector.members:
            proposals[plan_size] |= proposer.propose(member, plan_size)
    for number, layers in enumerate(request.selector.sets, start=1):
        named_units = units_of_layers(layers, request.depth, request.selector.units)
        plan_size = request.prices.size_of(named_units)
        if plan_size in proposals:
            proposals[plan_size][f"set {number}"] = frozenset(named_units)
    for strategy_name in proposer.searching:
        for plan_size, candidate in _search_with_defaults(
            request, strategy_name, calibration
        ).items():
            proposals[plan_size][strategy_name] = candidate.edits
    ranked_units = proposer.ranked.get(request.selector.metric, ())
    ranked_names = [entry.unit for entry in ranked_units] or request.units
    return proposals, {unit: float(rank) for rank, unit in enumerate(ranked_names)}


@dataclass(frozen=True)
class _Space:
    """One kind of unit in which members propose; `suffix` marks it in the members' names."""

    suffix: str
    kind: str


class _Proposer:
    """The members' proposals: metrics use a sweep of single removals, strategies use distances."""

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
        self.captured = {kind.title() for kind in Selector.kinds() if kind.CAPTURED}
        self.protected = protected_layers(request.selector.protect, request.depth)
        self.spaces = [_Space("", request.selector.units)]
        if request.selector.units == "both":
            self.spaces.append(_Space(OF_LAYERS, "layer"))
        self.ranked: dict[str, list[ScoredUnit]] = {}
        for space in self.spaces:
            self._rank_units(space, calibration)
        self.distances = StepEvidence()
        if self.captured & set(self.strategies):
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
        strategy_options = self._options_of(member)
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

    def _options_of(self, strategy_name: str) -> Selector:
        """The options of a strategy that proposes with its defaults."""
        options = {"strategy": strategy_name, "protect": self.request.selector.protect}
        if strategy_name in self.captured:
            options["metric"] = BOUNDARY_METRIC
        return Selector.from_options(options)

    def _rank_units(self, space: _Space, calibration: CalibrationSamples) -> None:
        """Rank the units of one kind by the members' metrics and by the deciding metric."""
        request = self.request
        units = all_units(request.depth, space.kind)
        removable_units = [unit for unit in units if parse_unit(unit)[0] not in self.protected]
        sweep_rows = removals.removal_rows(
            request.model,
            {"calibration": calibration},
            removable_units,
            token_budget=request.token_budget,
        )
        workload.done.advance(len(removable_units))
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
        """Distance between the base model's boundaries start and start + span, by (start, span)."""
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
        evaluator = Evaluator(session, metric, request.score)
        trials = Trials(evaluator, len(samples), prices=request.prices)
        search = Search(name, trials, np.arange(len(samples)))
        strategy = import_module(f"{Selector.PACKAGE}.{name}")
        return dict(strategy.find(search, request.units, request.sizes, default_options))
