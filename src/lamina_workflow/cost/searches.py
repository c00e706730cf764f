"""The work of a search: the rounds that its strategy foresees, and the fits of its repairs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lamina.engine.batches import TOKENS
from lamina.engine.budgets import sums_budget
from lamina.engine.candidates import Candidate, carried_models, grow_tree
from lamina.engine.moments import BATCH, split_boundaries
from lamina.engine.session import group_candidates
from lamina.engine.taps import count_positions
from lamina.models.boundary import Boundary
from lamina.models.units import all_units, parse_unit
from lamina.options.metrics import METRICS
from lamina.options.repairs import Repair
from lamina.selection.looped import candidate_boundaries
from lamina.selection.plans import UnitPrices
from lamina.selection.rounds import Round, SearchSpace, choosing_share, foresee_rounds
from lamina_workflow.cost.batches import split_into_batches
from lamina_workflow.cost.work import Logits, Tokens, count_layers, draw_plan, patch_flops


class SearchedModel(NamedTuple):
    """What the work of a search depends on: facts about a model and its configuration."""

    n_layers: int
    channels: int
    token_budget: int
    """Token positions of a pass."""
    attention_share: float = 0.0
    """The attention's share of a layer's cost, if sub-layers are removed."""


class SearchWork(NamedTuple):
    """What a search computes."""

    layer_tokens: float
    """Layer-tokens of the engine."""
    naive_layer_tokens: float
    patch_flops: float
    """FLOP of fitting the patches."""
    logits: Logits


def search_work(
    own: str,
    tokens_by_calibration: Mapping[str, Tokens],
    model: SearchedModel,
    sizes: Sequence[int],
    options: Any,
    repairs: Mapping[str, Repair],
) -> SearchWork:
    """The work of a search for sets of these sizes, and of their final measurement.

    If the strategy foresees no rounds, only the final measurement counts.

    own: The calibration whose samples are searched on.
    tokens_by_calibration: The tokens of all calibrations that the search reads.
    options: The options of the selector.
    repairs: The repairs with which sets are tried, by name.
    """
    is_free = options.free(model.n_layers)
    all_of_kind = all_units(model.n_layers, options.units)
    space = SearchSpace(
        [unit for unit in all_of_kind if is_free[parse_unit(unit)[0]]],
        sizes,
        UnitPrices(options.units, model.attention_share),
    )
    counter = _Counter(own, tokens_by_calibration, model, options, repairs)
    has_judged = False
    for search_round in foresee_rounds(space, options):
        counter.count(search_round)
        has_judged |= search_round.is_judging
    # Sets that the rounds have judged already are not measured again.
    winners = [draw_plan(model.n_layers, size, options.units) for size in sizes]
    measured = [Candidate()] if has_judged else [Candidate(), *winners]
    counter.count(Round(measured, 1.0, is_judging=True))
    return SearchWork(
        counter.layer_tokens,
        counter.naive_layer_tokens,
        counter.patch_flops,
        counter.count_logits(),
    )


class _Counter:
    """Counts the work of rounds, and of the fits for runs of removed units that they need first."""

    def __init__(
        self,
        own: str,
        tokens_by_calibration: Mapping[str, Tokens],
        model: SearchedModel,
        options: Any,
        repairs: Mapping[str, Repair],
    ) -> None:
        self.layer_tokens = 0.0
        self.naive_layer_tokens = 0.0
        self.patch_flops = 0.0
        self.n_logits = 0.0
        self._own = own
        self._tokens = tokens_by_calibration
        self._model = model
        self._repairs = repairs
        self._n_carried = int(METRICS[options.metric].outputs)
        self._fitted_runs: set[Boundary] = set()
        self._patches: dict[tuple[str, Boundary], Any] = {}

        # Repairs are not fitted on judge documents.
        judge = options.judge or own
        is_other = judge != own
        self._choosing = {own: choosing_share(own, options)}
        self._judging = {judge: 1.0 if is_other else options.held_back}
        self._judging |= {name: options.held_back for name in options.also if name != judge}
        self._fitting = dict.fromkeys(options.also, 1.0 - options.held_back)
        self._fitting |= self._choosing

    def count(self, search_round: Round) -> None:
        """Count a round, calibration by calibration."""
        candidates = list(search_round.candidates)
        if not candidates:
            return
        if self._repairs and search_round.is_judging:
            self._fit(candidate_boundaries(candidates, self._model.n_layers))
            candidates = self._with_repairs(candidates)
        shares = self._judging if search_round.is_judging else self._choosing
        budget = self._model.token_budget / (len(candidates) + self._n_carried)
        layers_by_n_groups: dict[int, int] = {}
        for name, share in shares.items():
            tokens = self._tokens[name]
            new_share = share * search_round.share
            for longest, n_lines in split_into_batches(tokens.lines, new_share, budget):
                width = round(longest * max(1.0, n_lines))
                groups = group_candidates(
                    candidates, width, self._model.token_budget, self._n_carried
                )
                if len(groups) not in layers_by_n_groups:
                    layers_by_n_groups[len(groups)] = self._tree_layers(groups)
                self.layer_tokens += layers_by_n_groups[len(groups)] * longest * n_lines
            n_layers = count_layers(candidates, self._model.n_layers)
            self.naive_layer_tokens += n_layers * tokens.rows * new_share
            n_models = len(candidates) + self._n_carried
            self.n_logits += n_models * tokens.scored * new_share

    def count_logits(self) -> Logits:
        """The logits so far; logits of the base model are included if they are compared."""
        return Logits(self.n_logits, self.n_logits if self._n_carried else 0.0)

    def _tree_layers(self, groups: Sequence[Sequence[Candidate]]) -> int:
        """Layers that a token runs through in the passes of groups of candidates."""
        n_layers = 0
        for group in groups:
            streams = carried_models(group, bool(self._n_carried))
            n_layers += grow_tree(streams, [], self._model.n_layers, True).layers
        return n_layers

    def _with_repairs(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates, bare and with each repair. Candidates with the same run share its patch."""
        forms: list[Candidate] = []
        for candidate in candidates:
            forms.append(candidate)
            runs = candidate_boundaries([candidate], self._model.n_layers)
            for name in self._repairs if runs else ():
                patches = {run: self._patches.setdefault((name, run), object()) for run in runs}
                forms.append(Candidate(candidate.edits, patches))
        return forms

    def _fit(self, runs: Collection[Boundary]) -> None:
        """Count the fits of all repairs for those runs that have none yet."""
        new_runs = set(runs) - self._fitted_runs
        if not new_runs:
            return
        self._fitted_runs |= new_runs
        # One pass collects the moments of as many runs as fit into memory.
        channels = self._model.channels
        n_passes = len(list(split_boundaries(sorted(new_runs), channels, sums_budget(channels))))
        budget = count_positions(min(TOKENS, BATCH // channels), 2 * len(new_runs))
        last_layer = max(end for _, end in new_runs)
        for repair in self._repairs.values():
            n_tokens = 0.0
            for name in repair.weights(self._own, auto=0.0):
                tokens = self._tokens[name]
                share = self._fitting.get(name, 1.0)
                n_tokens += share * tokens.stream
                lengths = [length * tokens.stream / tokens.packed for length in tokens.lines]
                n_padded = sum(
                    longest * n_lines
                    for longest, n_lines in split_into_batches(lengths, share, budget)
                )
                self.layer_tokens += n_passes * n_padded * last_layer
                self.naive_layer_tokens += n_passes * n_padded * last_layer
            self.patch_flops += patch_flops(channels, n_tokens, new_runs)
