"""The search of one selector for whole sets of units, at every size in a study."""

import hashlib
from collections.abc import Mapping, Sequence
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
from lamina.models.units import all_units
from lamina.modules import load
from lamina.relevance.columns import Context, from_table
from lamina.selection.evaluator import Evaluator
from lamina.selection.losses import loss_of
from lamina.selection.plans import Plan, protected_layers
from lamina.selection.trials import Trials, run, split, without
from lamina.stages.search_plans import SearchPlans
from lamina.store import parquet as store

# Columns of table `sweeps` for which outputs need not be compared with the unpruned model's.
OWN = ("correct", "nll", "gold_margin")


def searched(
    job: SearchPlans, model: PreTrainedModel, manifest: dict[str, Any], read: Mapping[str, Calibration], log: Path
) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans, and the rows of table `searches`, both without the log.

    Parameters
    ----------
    model, manifest
        The base model and its manifest.
    read
        The calibrations that the job names: the one that compares sets, and those that fit a repair in the loop.
    log
        The file of the losses so far. A search that was killed goes on from it.
    """
    selector, calibration = job.selector, read[job.keys["calibration"]]
    metric = selector.metric or ""
    samples, sequences, depth = calibration.samples, calibration.sequences(), engine.layer_count(model)
    kept = protected_layers(selector.protect, depth)
    units = [unit for unit in all_units(depth, selector.units) if int(unit.split(".")[0]) not in kept]
    seen, held_back = split(sequences, selector.held_back, selector.seed)  # type: ignore[attr-defined]
    described: dict[str, Any] = {"metric": metric, "strategy": selector.strategy, "kind": selector.units}
    layers = None
    if job.donors:
        donors, steps = load("lamina.models.donors"), load("lamina.selection.strategies.replacements")
        records = steps.read(job.donors.records)
        donors.check(model, manifest, records)
        layers = donors.donated(model, set(steps.units(units, [], selector.donors)) - set(units), records)
    outputs = METRICS[metric].column not in OWN
    tokens = room.tokens(job.tokens, model, samples, depth + 2)
    with engine.opened(model, samples, tokens, outputs, layers) as session:
        if refused := _refusal(job, calibration, session):
            return [Plan(**_keys(job, size), **described, refused=refused) for size in job.sizes], []
        measuring: Any = session
        growing: Any = None
        if loop := job.loop:
            looped = load("lamina.selection.looped")
            back = [sequences[number] for number in held_back]
            sequences_of = {name: without(each.sequences(), back) for name, each in read.items()}
            sequences_of[job.keys["calibration"]] = [sequences[number] for number in seen]
            sources = [Source(sequences_of[name], weight) for name, weight in loop.weights]
            growing = load("lamina.selection.growing").Growing(
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
            Evaluator(measuring, loss_of(metric, job.score)),
            len(samples),
            log,
            _origin(job),
            lambda: session.layer_tokens,
            prepare,
        )
        lengths = np.array([len(sequence) for sequence in sequences])
        result = run(trials, units, job.sizes, selector, seen, held_back, lengths)
    plans = []
    for size, end in result.sets.items():
        gone = sorted(end.removed, key=lambda unit: int(unit.split(".")[0]))
        between: list[float | None] = [None] * (len(gone) - 1)
        before, after = (1 - result.losses[at] if metric == "accuracy" else None for at in (0, size))
        chosen: dict[str, Any] = {"units": gone, "scores": [result.losses[size]] * len(gone)}
        around: dict[str, Any] = {"accuracy_before": [before, *between], "accuracy_after": [*between, after]}
        plan = Plan(**_keys(job, size), **described, **chosen, **around)
        plans.append(steps.with_records(plan, records) if job.donors else plan)
    return plans, [dict(row) for row in result.rows]


def _keys(job: SearchPlans, size: int) -> dict[str, Any]:
    return {**job.keys, "removed": size}


def _refusal(job: SearchPlans, calibration: Calibration, session: Session) -> str | None:
    """Why no plan can be made: the score of an unpruned model at chance cannot compare removals. None otherwise."""
    session.measure(range(len(calibration.samples)), {CURRENT: Candidate()})
    rows = store.from_rows("sweeps", session.scores.rows([CURRENT]), removed=0, **job.keys)
    undefined = getattr(load(f"lamina.relevance.metrics.{job.selector.metric}"), "undefined", lambda *_: None)
    reason = undefined(from_table(rows), Context(calibration.facts["chance_accuracy"], job.score))
    remedy = "Give the calibration more samples, or choose a task that the model can do, or another metric."
    return f"{reason[0]}. {remedy}" if reason else None


def _origin(job: SearchPlans) -> str:
    """The origin that a log must have, so that this job may go on from it."""
    files = [job.manifest, job.calibration, *job.data.values()]
    content = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files]
    return hashlib.sha256(repr([job.provenance, content]).encode()).hexdigest()
