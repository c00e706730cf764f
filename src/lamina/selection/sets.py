"""The search of one selector for whole sets of units, at every size in a study."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.data.calibrations import Calibration
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.models.units import all_units
from lamina.modules import load
from lamina.relevance import protocol
from lamina.relevance.columns import Context, from_table
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.options import Given, Loop
from lamina.selection.plans import Plan, protected_layers
from lamina.selection.trials import Trials, run, split, without
from lamina.store import parquet as store


def searched(
    model: PreTrainedModel,
    calibrations: Mapping[str, Calibration],
    selector: Selector,
    sizes: Sequence[int],
    keys: Mapping[str, str],
    score: str = "acc_norm",
    tokens: int | str = "auto",
    *,
    loop: Loop | None = None,
    replacements: Given | None = None,
    manifest: Mapping[str, Any] | None = None,
    loops: Mapping[str, Loop] | None = None,
    log: Path | None = None,
    origin: str = "",
) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all `sizes`, and the rows of table `searches` without its keys.

    model: The base model, complete.
    calibrations: By name: first the one that compares sets, then those that only fit the repair of `loop`.
    keys: Model, calibration and selector, as plans name them.
    score: `acc` or `acc_norm`.
    tokens: Budget of one pass: lines x streams x length.
    replacements, manifest: Whose layers may replace the model's own, and the manifest of the model, which they are
        compared with.
    log: The file of the losses so far. A search that was killed goes on from it if it has the same `origin`.
    """
    scored, calibration = next(iter(calibrations.items()))
    metric = selector.metric or ""
    samples, sequences, depth = calibration.samples, calibration.sequences(), engine.layer_count(model)
    kept = protected_layers(selector.protect, depth)
    units = [unit for unit in all_units(depth, selector.units) if int(unit.split(".")[0]) not in kept]
    seen, held_back = split(sequences, selector.held_back, selector.seed)  # type: ignore[attr-defined]
    described: dict[str, Any] = {**keys, "metric": metric, "strategy": selector.strategy, "kind": selector.units}
    layers = None
    if replacements:
        steps = load("lamina.selection.strategies.replacements")
        layers = replacements.layers(model, manifest or {}, steps.units(units, [], replacements.names))
    own = protocol.metric(metric)
    budget = room.tokens(tokens, model, samples, depth + 2)
    with engine.opened(model, samples, budget, METRICS[metric].outputs, layers) as session:
        if refused := _refusal(metric, score, keys, calibration, session):
            return [Plan(**described, removed=size, refused=refused) for size in sizes], []
        measuring: Any = session
        growing: Any = None
        if loop:
            looped = load("lamina.selection.looped")
            back = [sequences[number] for number in held_back]
            sequences_of = {name: without(each.sequences(), back) for name, each in calibrations.items()}
            sequences_of[scored] = [sequences[number] for number in seen]
            sources = [Source(sequences_of[name], weight) for name, weight in loop.weights]
            growing = looped.Growing(
                lambda candidates: looped.fitted(model, sources, candidates, loop.repair, loop.seed),
                seen,
                len(samples),
                depth,
            )
            measuring = looped.Looped(session, growing.repairs)

        def prepare(candidates: Sequence[Candidate]) -> None:
            # The trials remember losses; scores of every set ever tried would fill the memory.
            session.scores = Scores(samples)
            if growing:
                growing.fit(candidates)

        trials = Trials(
            Evaluator(measuring, loss_of(metric, score)),
            len(samples),
            log,
            origin,
            lambda: session.layer_tokens,
            prepare,
        )
        lengths = np.array([len(sequence) for sequence in sequences])
        result = run(trials, units, sizes, selector, seen, held_back, lengths)
    plans = []
    for size, end in result.sets.items():
        gone = sorted(end.removed, key=lambda unit: int(unit.split(".")[0]))
        between: list[float | None] = [None] * (len(gone) - 1)
        before, after = (own.accuracy(result.losses[at]) for at in (0, size))
        chosen: dict[str, Any] = {"units": gone, "scores": [result.losses[size]] * len(gone)}
        around: dict[str, Any] = {"accuracy_before": [before, *between], "accuracy_after": [*between, after]}
        plan = Plan(**described, removed=size, **chosen, **around)
        plans.append(steps.with_records(plan, replacements.records) if replacements else plan)
    return plans, [dict(row) for row in result.rows]


def _refusal(
    metric: str, score: str, keys: Mapping[str, str], calibration: Calibration, session: Session
) -> str | None:
    """Why no plan can be made: the score of an unpruned model at chance cannot compare removals. None otherwise."""
    session.measure(range(len(calibration.samples)), {CURRENT: Candidate()})
    rows = store.from_rows("sweeps", session.scores.rows([CURRENT]), removed=0, **keys)
    context = Context(calibration.facts["chance_accuracy"], score)
    reason = protocol.metric(metric).undefined(from_table(rows), context)
    remedy = "Give the calibration more samples, or choose a task that the model can do, or another metric."
    return f"{reason[0]}. {remedy}" if reason else None
