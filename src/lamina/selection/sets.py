"""The search of one selector for whole sets of units, at every size in a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples
from lamina.engine import memory, sweep
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.models import workload
from lamina.models.structure import layers_of
from lamina.models.units import (
    Replacement,
    all_units,
    list_replacements,
    parse_edit,
    parse_unit,
)
from lamina.options.metrics import METRICS
from lamina.relevance import protocol
from lamina.relevance.columns import Context, from_table
from lamina.selection.evaluator import Evaluator
from lamina.selection.options import Loop
from lamina.selection.plans import Plan, UnitPrices, protected_layers
from lamina.selection.rounds import SearchSpace, count_sets, foresee_rounds
from lamina.selection.trials import LossSource, SearchResult, Trials, run_search, split_samples
from lamina.store import parquet


@dataclass(frozen=True)
class SearchRequest:
    """The inputs of a search for whole sets: the argument of `search_plans`."""

    model: PreTrainedModel
    """The complete base model."""
    calibrations: Mapping[str, CalibrationSamples]
    """Calibrations by name. The first one compares sets. Others judge, or repairs are fitted on
    them."""
    selector: Any
    sizes: Sequence[int]
    keys: Mapping[str, Any]
    """Model, calibration and selector, as plans name them."""
    score: str = "acc_norm"
    """How choices are compared: `acc` or `acc_norm`."""
    token_budget: int | str = "auto"
    """Token budget of one pass: lines × streams × length."""
    loops: Mapping[str, Loop] = field(default_factory=dict)
    """The repairs with which every set is tried, by name."""
    donors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What plans record about donors, whose layers may replace the model's own, by name."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Manifest of the model; `units: both` needs its `attention_share`."""
    questions: Any = None
    """Questions of the judging calibration, if sets answer them in writing
    (`lamina.evaluation.written_removals.draw_questions`)."""
    log: Path | None = None
    """The losses so far. A killed search continues from a log with the same `origin`."""
    origin: str = ""

    @property
    def folder(self) -> Path | None:
        """Where patches wait that exceed memory; None for the folder of temporary files."""
        if self.log is None:
            return None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.parent

    @property
    def depth(self) -> int:
        """L."""
        return len(layers_of(self.model))

    @property
    def units(self) -> list[str]:
        """The units that may be removed."""
        protected = protected_layers(self.selector.protect, self.depth)
        units = all_units(self.depth, self.selector.units)
        return [unit for unit in units if parse_unit(unit)[0] not in protected]

    @property
    def prices(self) -> UnitPrices:
        """What units count towards a size."""
        if self.selector.units != "both":
            return UnitPrices(self.selector.units)
        return UnitPrices("both", self.selector.attention(self.manifest["attention_share"]))

    def expect_sets(self) -> None:
        """Log how many sets the search is expected to measure."""
        space = SearchSpace(self.units, self.sizes, self.prices)
        n_sets = sum(
            count_sets(search_round.candidates)
            for search_round in foresee_rounds(space, self.selector)
        )
        workload.done.expect(n_sets, "sets")

    def make_trials(self, session: Session, loss_source: LossSource) -> Trials:
        """The trials of sets on the samples of a session, continued from the log."""
        samples = session.scores.samples

        def forget_scores() -> None:
            # The trials keep the losses; the scores of every set ever tried would fill the memory.
            session.scores = Scores(samples)

        return Trials(
            loss_source,
            len(samples),
            self.log,
            self.origin,
            lambda: session.layer_tokens,
            forget_scores,
            self.prices,
        )

    def make_plan(self, size: int, **columns: Any) -> Plan:
        """The plan of a size, with these columns."""
        return Plan(
            **self.keys,
            removed=size,
            metric=self.selector.metric,
            strategy=self.selector.strategy,
            kind=self.selector.units,
            **columns,
        )


def search_plans(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    request.expect_sets()
    selector = request.selector
    calibration = next(iter(request.calibrations.values()))
    samples = calibration.samples
    seen_indices, heldback_indices = split_samples(
        calibration.sequences(), selector.held_back, selector.seed
    )
    token_budget = memory.choose_token_budget(
        request.token_budget, request.model, samples, request.depth + 2
    )
    outputs = METRICS[selector.metric].outputs
    other_layers = _layers_of_other_models(request)
    with sweep.open_session(request.model, samples, token_budget, outputs, other_layers) as session:
        if refusal := _refusal(request, calibration, session):
            return [
                request.make_plan(plan_size, refused=refusal) for plan_size in request.sizes
            ], []

        evaluator = Evaluator(session, selector.metric, request.score)
        trials = request.make_trials(session, evaluator)
        search_result = run_search(
            trials, request.units, request.sizes, selector, seen_indices, heldback_indices
        )
    plans = [_plan_of_set(request, search_result, plan_size) for plan_size in search_result.sets]
    return plans, [dict(row) for row in search_result.rows]


def _layers_of_other_models(request: SearchRequest) -> Any:
    """The modules that may replace layers of the model; None if no donors are listed."""
    if not request.donors:
        return None
    replacements = import_module("lamina.models.replacements")
    replacements.check_siblings(request.model, request.manifest, request.donors)
    edits = list_replacements(request.units, list(request.donors))
    return replacements.replacement_layers(request.model, edits, request.donors)


def _plan_of_set(request: SearchRequest, search_result: SearchResult, plan_size: int) -> Plan:
    """The plan of one size from the set that a search found."""
    units = sorted(search_result.sets[plan_size].edits, key=parse_unit)
    metric = protocol.metric_named(request.selector.metric)
    unmeasured: list[float | None] = [None] * (len(units) - 1)
    edits = [parse_edit(unit) for unit in units]
    donors = sorted({edit.donor for edit in edits if isinstance(edit, Replacement)})
    return request.make_plan(
        plan_size,
        units=units,
        scores=[search_result.losses[plan_size]] * len(units),
        accuracy_before=[metric.accuracy(search_result.base_loss), *unmeasured],
        accuracy_after=[*unmeasured, metric.accuracy(search_result.losses[plan_size])],
        replacements={name: request.donors[name] for name in donors},
    )


def _refusal(
    request: SearchRequest, calibration: CalibrationSamples, session: Session
) -> str | None:
    """The reason why no plan can be made, or None.

    A base model at chance cannot compare removals.
    """
    session.measure(range(len(calibration.samples)), {CURRENT: Candidate()})
    current_rows = session.scores.rows([CURRENT])
    sweep_table = parquet.from_rows("sweeps", current_rows, removed=0, **request.keys)
    context = Context(calibration.facts["chance_accuracy"], request.score)
    reason = protocol.metric_named(request.selector.metric).undefined(
        from_table(sweep_table), context
    )
    if not reason:
        return None
    return (
        f"{reason[0]}. Give the calibration more samples, choose a task that the model can do, or "
        "choose another metric."
    )
