"""Make one plan of one selector: collect the evidence about the current model, ask the strategy.

The evidence comes from the sweep of one calibration, from those of several, or from the captured
activations of the base model.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.errors import LaminaError
from lamina.models.units import parse_unit
from lamina.options.metrics import METRICS
from lamina.options.selectors import Selector
from lamina.relevance.columns import Columns, Context, correct_answers, from_table
from lamina.relevance.score import rank_units, was_measured
from lamina.selection.options import CalibrationSweep
from lamina.selection.plans import (
    Plan,
    PlanRequest,
    ScoredUnit,
    StepEvidence,
    protected_layers,
)

DIGITS = 12  # equal scores must compare equal, however their sums were rounded


def empty_plan(selector: Selector, keys: Mapping[str, Any], refused: str | None = None) -> Plan:
    """A plan without units: the one before a selector's first step, or one that is `refused`."""
    return Plan(
        **keys,
        metric=selector.metric,
        strategy=selector.strategy,
        kind=selector.units,
        refused=refused,
    )


def collect_evidence(
    selector: Selector,
    sweeps: Mapping[str, CalibrationSweep],
    activations: pa.Table | None = None,
    previous: Plan | None = None,
) -> tuple[str | None, StepEvidence]:
    """The reason why no plan can be made (or None), and the evidence about the current model.

    sweeps: The sweeps that are read, by the names of their calibrations, the variant's own first;
        none for a strategy that reads no sweep.
    activations: Table `activations` of the base model, for a strategy that compares runs of layers.
    previous: The plan with one unit fewer from which an iterative step continues; None for the
        first step. The current model is the one that it leaves.
    """
    if previous and previous.refused:
        return previous.refused, StepEvidence()
    if activations is not None:
        return None, StepEvidence(distances=read_distances(activations, selector.metric or ""))
    if not sweeps:
        return None, StepEvidence()
    n_removed = previous.removed if previous else 0
    step_evidence: list[StepEvidence] = []
    for calibration, scored in sweeps.items():
        context = Context(scored.chance_accuracy, scored.score, n_removed, selector.seed)
        refusal, step = read_step(scored.sweep, selector.metric or "", context, calibration)
        if refusal:
            return refusal, StepEvidence()
        step_evidence.append(step)
    if len(step_evidence) == 1:
        return None, step_evidence[0]
    weights = [scored.weight for scored in sweeps.values()]
    return None, combine_steps(step_evidence, weights, selector.combine)


def choose_plan(
    selector: Selector,
    keys: Mapping[str, Any],
    n_layers: int,
    step: StepEvidence,
    previous: Plan | None = None,
    layer_kinds: Sequence[int] = (),
    attention_share: float = 0.0,
) -> Plan:
    """The plan of size `keys["removed"]` for a model of `n_layers` layers.

    layer_kinds: The kind of each layer, if the cut must not shift kinds.
    attention_share: The attention's share of a layer's cost.
    """
    request = PlanRequest(
        removed=keys["removed"],
        kind=selector.units,
        n_layers=n_layers,
        protected=protected_layers(selector.protect, n_layers),
        seed=selector.seed,
        layer_kinds=layer_kinds,
        attention_share=attention_share,
        given_layers=selector.layers,
        given_edits=selector.edits,
    )
    previous = previous or empty_plan(selector, keys)
    strategy = import_module(f"lamina.selection.strategies.{selector.strategy}")
    return strategy.choose(request, step, previous)


def read_step(
    sweep_table: pa.Table, metric: str, context: Context, calibration_name: str
) -> tuple[str | None, StepEvidence]:
    """The reason why no plan can be made (or None), and the evidence of one sweep.

    sweep_table: The rows of one sweep of table `sweeps`.

    Units are ranked by the selector's own metric. A base model at chance has no accuracy relevance:
    a plan made from it would be noise, so it is refused.

    Raises LaminaError if the sweep holds no numbers of the metric.
    """
    sweep_columns = from_table(sweep_table) if sweep_table.num_rows else None
    if sweep_columns is None or not was_measured(sweep_columns, metric, context):
        raise LaminaError(
            f"the sweep on calibration '{calibration_name}' holds no scores of metric '{metric}', "
            "because its pass measured none."
        )
    ranking = rank_units(sweep_columns, metric, context)
    if ranking.ranks is None:
        remedy = METRICS[metric].remedy.format(calibration=calibration_name)
        return f"{ranking.reason}. {remedy}", StepEvidence()
    scores = [float(score) if np.isfinite(score) else None for score in ranking.draws[0]]
    by_rank = sorted(zip(ranking.ranks, sweep_columns.units, scores, strict=True))
    ranked_units = [ScoredUnit(unit, score) for _, unit, score in by_rank]
    current_accuracy, accuracies = _accuracies(sweep_columns, context)
    return None, StepEvidence(ranked_units, current_accuracy, accuracies)


def _accuracies(sweep_columns: Columns, context: Context) -> tuple[float | None, dict[str, float]]:
    """Accuracy of the current model and without each unit, where answers were measured.

    If answers were written, theirs.
    """
    right_answers = correct_answers(sweep_columns.values, context.score)
    if sweep_columns.is_measured("written_correct"):
        right_answers = sweep_columns.values["written_correct"]
    with warnings.catch_warnings():
        # A pass without removals has no accuracies: the mean over no samples is NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean_accuracies = np.nanmean(right_answers, axis=1)
    current_accuracy = float(mean_accuracies[0]) if np.isfinite(mean_accuracies[0]) else None
    accuracy_by_unit: dict[str, float] = {}
    for unit, mean_accuracy in zip(sweep_columns.units, mean_accuracies[1:], strict=True):
        if not np.isnan(mean_accuracy):
            accuracy_by_unit[unit] = float(mean_accuracy)
    return current_accuracy, accuracy_by_unit


def read_distances(activations: pa.Table, metric: str) -> dict[tuple[int, int], float]:
    """Distance between boundaries `start` and `start + span`, by (start, span)."""
    (column,) = METRICS[metric].columns
    distance_rows = activations.select(["layer", "span", column]).to_pylist()
    return {(row["layer"], row["span"]): row[column] for row in distance_rows if row["span"]}


def combine_steps(
    steps: Sequence[StepEvidence], weights: Sequence[float], combine: str
) -> StepEvidence:
    """The first of `steps`, with its units ranked by the scores s of all steps, weighted by w.

    The first step is that of the selector's own calibration (w = 1).

    `mean` ranks by Σ w s / Σ w, and `worst` by the largest w s. A calibration on which the metric
    has become undefined (accuracy at chance) does not count. If it is undefined on the own
    calibration, this one alone ranks the units. A unit whose removal gives no numbers on one
    calibration is removed last. Of units with equal scores, the deeper one is removed first.
    """
    defined_steps: list[tuple[dict[str, float | None], float]] = []
    for step, weight in zip(steps, weights, strict=True):
        score_by_unit = dict(step.ranked)
        if any(score is not None for score in score_by_unit.values()):
            defined_steps.append((score_by_unit, weight))
        elif step is steps[0]:
            return steps[0]
    units = [entry.unit for entry in steps[0].ranked]
    combined_units = [
        ScoredUnit(unit, _combined_score(unit, defined_steps, combine)) for unit in units
    ]
    return replace(steps[0], ranked=sorted(combined_units, key=_removal_order))


def _combined_score(
    unit: str, defined_steps: Sequence[tuple[Mapping[str, float | None], float]], combine: str
) -> float | None:
    """The score of a unit over all calibrations; None if one of them has none."""
    weighted_scores: list[float] = []
    for score_by_unit, weight in defined_steps:
        score = score_by_unit.get(unit)
        if score is None:
            return None
        weighted_scores.append(weight * score)
    if combine == "worst":
        return max(weighted_scores)
    return sum(weighted_scores) / sum(weight for _, weight in defined_steps)


def _removal_order(entry: ScoredUnit) -> tuple[float, int]:
    score = inf if entry.score is None else round(entry.score, DIGITS)
    return score, -parse_unit(entry.unit)[0]
