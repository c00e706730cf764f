"""The search of one selector for whole sets of units, at every size in a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.config.metrics import METRICS
from lamina.data.calibrations import Calibration
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.relevance import protocol
from lamina.relevance.columns import Context, from_table
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.options import Given, Loop
from lamina.selection.plans import Plan, Prices, protected_layers
from lamina.selection.trials import Trials, run, split, without
from lamina.store import parquet as store


@dataclass(frozen=True)
class SearchRequest:
    """What a selector's search for whole sets is given; `searched` of the module `SEARCH` of its class takes it."""

    model: PreTrainedModel  # the base model, complete
    calibrations: Mapping[
        str, Calibration
    ]  # the first compares sets; others judge, or repairs are fitted on them
    selector: Any
    sizes: Sequence[int]
    keys: Mapping[str, Any]  # model, calibration and selector, as plans name them
    score: str = "acc_norm"  # or `acc`
    tokens: int | str = "auto"  # budget of one pass: lines x streams x length
    loop: Loop | None = None  # the repair in place of every candidate
    loops: Mapping[str, Loop] = field(
        default_factory=dict
    )  # the repairs by name with which every set is tried
    replacements: Given | None = None  # whose layers may replace the model's own
    manifest: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the model; halves need its `attention_share`
    log: Path | None = (
        None  # the losses so far; a search that was killed goes on from it if it has the same `origin`
    )
    origin: str = ""

    @property
    def folder(self) -> Path | None:
        """Where the search may write what it does not keep in memory; None for the place of temporary files."""
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
        kept = protected_layers(self.selector.protect, self.depth)
        return [
            unit
            for unit in all_units(self.depth, self.selector.units)
            if parse(unit)[0] not in kept
        ]

    @property
    def prices(self) -> Prices:
        """What the units count in a size."""
        own = self.selector
        return Prices(
            own.units,
            own.attention(self.manifest["attention_share"]) if own.units == "both" else 0.0,
        )

    def plan(self, size: int, **facts: Any) -> Plan:
        """The plan of a size."""
        own = self.selector
        return Plan(
            **self.keys,
            removed=size,
            metric=own.metric,
            strategy=own.strategy,
            kind=own.units,
            **facts,
        )


def searched(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    model, selector, units = request.model, request.selector, request.units
    scored, calibration = next(iter(request.calibrations.items()))
    samples, sequences, metric = calibration.samples, calibration.sequences(), selector.metric
    seen, held_back = split(sequences, selector.held_back, selector.seed)
    layers = None
    if replacements := request.replacements:
        steps = load("lamina.selection.strategies.replacements")
        layers = replacements.layers(
            model, request.manifest, steps.units(units, [], replacements.names)
        )
    own = protocol.metric(metric)
    budget = room.tokens(request.tokens, model, samples, request.depth + 2)
    with engine.opened(model, samples, budget, METRICS[metric].outputs, layers) as session:
        if refused := _refusal(request, calibration, session):
            return [request.plan(size, refused=refused) for size in request.sizes], []
        measuring: Any = session
        growing: Any = None
        if loop := request.loop:
            looped = load("lamina.selection.looped")
            back = [sequences[number] for number in held_back]
            sequences_of = {
                name: without(each.sequences(), back) for name, each in request.calibrations.items()
            }
            sequences_of[scored] = [sequences[number] for number in seen]
            sources = [Source(sequences_of[name], weight) for name, weight in loop.weights]

            kept = looped.store_for(model, request.folder)

            def fitted(candidates: Sequence[Candidate]) -> Any:
                return looped.fitted(model, sources, candidates, loop.repair, loop.seed, store=kept)

            growing = looped.Growing(fitted, seen, len(samples), request.depth)
            measuring = looped.Looped(session, growing.repairs)

        def prepare(candidates: Sequence[Candidate]) -> None:
            # The trials remember losses; scores of every set ever tried would fill the memory.
            session.scores = Scores(samples)
            if growing:
                growing.fit(candidates)

        asked = Evaluator(measuring, loss_of(metric, request.score))
        job = (request.log, request.origin, lambda: session.layer_tokens)
        trials = Trials(asked, len(samples), *job, prepare, request.prices)
        lengths = np.array([len(sequence) for sequence in sequences])
        result = run(trials, units, request.sizes, selector, seen, held_back, lengths)
    plans = []
    for size, end in result.sets.items():
        gone = sorted(end.removed, key=parse)
        between: list[float | None] = [None] * (len(gone) - 1)
        before, after = (own.accuracy(result.losses[at]) for at in (0, size))
        plan = request.plan(
            size,
            units=gone,
            scores=[result.losses[size]] * len(gone),
            accuracy_before=[before, *between],
            accuracy_after=[*between, after],
        )
        plans.append(steps.with_records(plan, replacements.records) if replacements else plan)
    return plans, [dict(row) for row in result.rows]


def _refusal(request: SearchRequest, calibration: Calibration, session: Session) -> str | None:
    """Why no plan can be made: the score of an unpruned model at chance cannot compare removals. None otherwise."""
    session.measure(range(len(calibration.samples)), {CURRENT: Candidate()})
    rows = store.from_rows("sweeps", session.scores.rows([CURRENT]), removed=0, **request.keys)
    context = Context(calibration.facts["chance_accuracy"], request.score)
    reason = protocol.metric(request.selector.metric).undefined(from_table(rows), context)
    remedy = "Give the calibration more samples, or choose a task that the model can do, or another metric."
    return f"{reason[0]}. {remedy}" if reason else None
