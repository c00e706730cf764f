"""One step of a selector: the evidence about the current model, from one calibration or several, and the plan."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.data.calibrations import METADATA_KEY
from lamina.errors import LaminaError
from lamina.modules import load
from lamina.relevance.columns import Context, from_table, hits
from lamina.relevance.score import ranking, was_measured
from lamina.selection.options import Given, Scored
from lamina.selection.plans import Plan, Request, Step, protected_layers
from lamina.store import parquet as store


def empty(selector: Selector, keys: Mapping[str, Any], refused: str | None = None) -> Plan:
    """A plan without units: the one before a selector's first step, or one that is `refused` for this reason."""
    metric, strategy, kind = selector.metric, selector.strategy, selector.units
    return Plan(**keys, metric=metric, strategy=strategy, kind=kind, refused=refused)


def evidence(
    selector: Selector,
    scored: Mapping[str, Scored],
    activations: str | None = None,
    previous: Plan | None = None,
) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and the evidence about the model that `previous` leaves.

    scored: The sweeps that are read, by the names of their calibrations, the variant's own first; none for a strategy
        that reads no sweep.
    activations: The captured activations of the unpruned model, for a strategy that compares runs of layers.
    previous: The plan with one unit less that an iterative step goes on from; None for a step from the unpruned model.
    """
    refused, step = previous.refused if previous else None, Step()
    if refused is None and scored:
        gone, steps = previous.removed if previous else 0, []
        for name, each in scored.items():
            facts = json.loads(
                store.read(each.calibration, ["sample"]).schema.metadata[METADATA_KEY]
            )
            context = Context(facts["chance_accuracy"], each.score, gone, selector.seed)
            reason, seen = read_step(each.sweep, selector.metric or "", context, name)
            refused = refused or reason
            steps.append(seen)
        step = steps[0]
        if len(steps) > 1 and refused is None:
            weights = [each.weight for each in scored.values()]
            step = mixed(steps, weights, selector.combine)
    if activations:
        step = Step(angles=read_angles(activations, selector.metric or ""))
    return refused, step


def choose(
    selector: Selector,
    keys: Mapping[str, Any],
    n_layers: int,
    step: Step,
    previous: Plan | None = None,
    replacements: Given | None = None,
    kinds: Sequence[int] = (),
    attention: float = 0.0,
) -> Plan:
    """The plan of the size `keys["removed"]` for a model of `n_layers` layers, whose `kinds` it must not shift.

    `attention` is the share of a layer's cost that its attention has.
    """
    protected = protected_layers(selector.protect, n_layers)
    request = Request(
        keys["removed"], selector.units, n_layers, protected, selector.seed, kinds, attention
    )
    before = previous or empty(selector, keys)
    if replacements:
        steps = load("lamina.selection.strategies.replacements")
        plan: Plan = steps.with_records(steps.choose(request, step, before), replacements.records)
    else:
        plan = load(f"lamina.selection.strategies.{selector.strategy}").choose(
            request, step, before
        )
    return plan


def read_step(
    sweep: str | Path, metric: str, context: Context, calibration: str
) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and the evidence about the current model.

    Units are ranked by the selector's own metric; the unit that a budget chose comes first. A base model at chance has
    no accuracy relevance. A plan made from it would be noise, so it is refused.
    """
    table = store.read(sweep)
    columns = from_table(table) if table.num_rows else None
    if columns is None or not was_measured(columns, metric, context):
        raise LaminaError(
            f"{sweep} holds no scores of metric '{metric}': the sweep before it measured none."
        )
    order = ranking(columns, metric, context)
    if order.ranks is None:
        return f"{order.reason}. {METRICS[metric].remedy.format(calibration=calibration)}", Step()
    scores = [float(score) if np.isfinite(score) else None for score in order.draws[0]]
    entries = sorted(
        zip(columns.units, scores, order.ranks, strict=True),
        key=lambda entry: (entry[0] != columns.chosen, entry[2]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pass without removals has no accuracies
        means = np.nanmean(hits(columns.values, context.score), axis=1)
    current = float(means[0]) if np.isfinite(means[0]) else None
    accuracies = {
        unit: float(mean)
        for unit, mean in zip(columns.units, means[1:], strict=True)
        if mean == mean
    }
    return None, Step([(unit, score) for unit, score, _ in entries], current, accuracies)


def read_angles(activations: str | Path, metric: str) -> dict[tuple[int, int], float]:
    """Distance of boundary `start + span` from boundary `start`, by (start, span)."""
    (column,) = METRICS[metric].columns
    rows = store.read(activations, ["layer", "span", column]).to_pylist()
    return {(row["layer"], row["span"]): row[column] for row in rows if row["span"]}


def mixed(steps: Sequence[Step], weights: Sequence[float], combine: str) -> Step:
    """The first of `steps`, which is of the own calibration (w = 1), with its units ranked by the scores s of all.

    `mean` is Σ w s / Σ w, and `worst` is the largest w s. A calibration does not count if the metric is undefined on it
    (accuracy at chance). If it is undefined on the own one, that one ranks alone, as without the others. A unit whose
    removal gives no numbers on one of them is removed last. Of units with equal scores the deeper one is removed first.
    """
    scores = [dict(step.ranked) for step in steps]
    telling = [
        (of, weight)
        for of, weight in zip(scores, weights, strict=True)
        if set(of.values()) - {None}
    ]
    if not telling or telling[0][0] is not scores[0]:
        return steps[0]
    total = sum(weight for _, weight in telling)

    def score(unit: str) -> float | None:
        weighted = [
            weight * value
            for step_scores, weight in telling
            if (value := step_scores.get(unit)) is not None
        ]
        if len(weighted) < len(telling):
            return None
        return max(weighted) if combine == "worst" else sum(weighted) / total

    totals = {unit: score(unit) for unit in scores[0]}

    def place(unit: str) -> tuple[float, int]:
        value = totals[unit]
        return (float("inf") if value is None else round(value, 12)), -int(unit.split(".")[0])

    return replace(steps[0], ranked=[(unit, totals[unit]) for unit in sorted(totals, key=place)])
