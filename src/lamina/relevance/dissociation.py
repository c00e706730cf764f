"""Which units one task needs more than another: D = R(task) - R(rival).

R is accuracy relevance.

A *double* dissociation has significant units of both signs. With units of only one sign, one of the
tasks may simply be easier to break. A task's relevance is drawn as for its interval in table
`relevance`. Two random halves of one task differ by chance alone: a difference must leave the band
of these differences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from scipy.stats import false_discovery_control

from lamina.models.units import parse_unit
from lamina.relevance.columns import Columns, Context, from_table
from lamina.relevance.metric_agreement import base_sweeps
from lamina.relevance.metrics.answers import Accuracy
from lamina.relevance.statistics import percentile_interval

N_DRAWS = 4000
"""With 4,000 bootstrap draws, p can be as low as 0.0005. A single significant unit among a hundred
needs this.
"""

N_SPLITS = 1000
"""Random splits of a task into two halves."""

LEVEL = 0.05
"""False discovery rate below which a difference is called significant."""

accuracy = Accuracy()


@dataclass(frozen=True)
class TaskRelevance:
    """Accuracy relevance of every unit on one task."""

    draws: np.ndarray
    """Scores, (1 + draws, units); the first row is the estimate."""

    split_differences: np.ndarray
    """Relevance on one random half of the samples minus that on the other, (splits, units).

    NaN where a half is at chance and has no relevance.
    """


@dataclass(frozen=True)
class SweptTask:
    """The sweep of the base model on one calibration."""

    calibration: str
    columns: Columns
    context: Context


class DissociationRow(TypedDict):
    """A row of table `dissociations`; `lamina.tables` describes the columns."""

    model: str
    component: str
    calibration: str
    rival: str
    n_samples: int
    n_rival: int
    unit: str
    layer: int
    difference: float
    ci_low: float
    ci_high: float
    p_value: float
    q_value: float
    null_low: float
    null_high: float
    sure: bool


def dissociation_rows(
    calibrations: Sequence[Mapping[str, Any]], sweeps: dataset.Dataset
) -> Iterator[DissociationRow]:
    """Rows of table `dissociations`; `calibrations` are the rows of that table."""
    tasks_by_kind: dict[tuple[str, str], list[SweptTask]] = {}
    for calibration, kind, sweep_table in base_sweeps(calibrations, sweeps):
        task = _defined_task(calibration, sweep_table)
        if task:
            tasks_by_kind.setdefault((calibration["model"], kind), []).append(task)

    for (model, kind), tasks in sorted(tasks_by_kind.items(), key=lambda item: item[0]):
        # Each task has its own seed, so that the draws are independent.
        relevance_by_task = [draw_relevance(task, seed) for seed, task in enumerate(tasks)]
        for first, second in combinations(range(len(tasks)), 2):
            if tasks[first].columns.units == tasks[second].columns.units:
                differences = compare_tasks(relevance_by_task[first], relevance_by_task[second])
                yield from _rows(model, kind, tasks[first], tasks[second], differences)


def _defined_task(calibration: Mapping[str, Any], table: pa.Table) -> SweptTask | None:
    """The task of a calibration; None where accuracy relevance is undefined or was not measured."""
    answered = table.filter(pc.is_valid(table["correct"]))
    if not len(answered):
        return None
    columns = from_table(answered)
    context = Context.from_calibration(calibration)
    if not columns.units or accuracy.undefined(columns, context) is not None:
        return None
    return SweptTask(calibration["calibration"], columns, context)


def _rows(
    model: str, kind: str, task: SweptTask, rival: SweptTask, differences: dict[str, np.ndarray]
) -> Iterator[DissociationRow]:
    for index, unit in enumerate(task.columns.units):
        yield {
            "model": model,
            "component": kind,
            "calibration": task.calibration,
            "rival": rival.calibration,
            "n_samples": task.columns.n_samples,
            "n_rival": rival.columns.n_samples,
            "unit": unit,
            "layer": parse_unit(unit)[0],
            "difference": differences["difference"][index].item(),
            "ci_low": differences["ci_low"][index].item(),
            "ci_high": differences["ci_high"][index].item(),
            "p_value": differences["p_value"][index].item(),
            "q_value": differences["q_value"][index].item(),
            "null_low": differences["null_low"][index].item(),
            "null_high": differences["null_high"][index].item(),
            "sure": differences["sure"][index].item(),
        }


def compare_tasks(task: TaskRelevance, rival: TaskRelevance) -> dict[str, np.ndarray]:
    """Columns of the table, (units,) each, from the relevance on both tasks."""
    differences = task.draws - rival.draws
    differences = np.where(np.isfinite(differences), differences, np.nan)
    estimated_differences = differences[0]
    drawn_differences = differences[1:]
    ci_low, ci_high = percentile_interval(drawn_differences)

    # NaN, from a base model at chance in a draw, is not above 0 and not below 0.
    n_not_above = (~(drawn_differences > 0)).sum(axis=0)
    n_not_below = (~(drawn_differences < 0)).sum(axis=0)
    n_beyond = 1 + np.minimum(n_not_above, n_not_below)
    p_values = np.minimum(1, 2 * n_beyond / len(differences))
    q_values = false_discovery_control(p_values)

    task_low, task_high = percentile_interval(task.split_differences)
    rival_low, rival_high = percentile_interval(rival.split_differences)
    null_low = np.minimum(task_low, rival_low)
    null_high = np.maximum(task_high, rival_high)
    is_outside = (estimated_differences < null_low) | (estimated_differences > null_high)
    return {
        "difference": estimated_differences,
        "ci_low": np.fmin(ci_low, estimated_differences),
        "ci_high": np.fmax(ci_high, estimated_differences),
        "p_value": p_values,
        "q_value": q_values,
        "null_low": null_low,
        "null_high": null_high,
        "sure": is_outside & (q_values <= LEVEL),
    }


def draw_relevance(task: SweptTask, seed: int) -> TaskRelevance:
    """Draws of every unit's relevance, and of the differences between random halves of the task."""
    n_samples = task.columns.n_samples
    plain_mean = np.full((1, n_samples), 1 / n_samples)
    estimated_scores = accuracy.score(task.columns, plain_mean, task.context)
    posterior_draws = accuracy.posterior(task.columns, task.context, seed, N_DRAWS)

    generator = np.random.default_rng([seed, 1])
    random_positions = generator.random((N_SPLITS, n_samples)).argsort(axis=1).argsort(axis=1)
    in_first_half = random_positions < n_samples // 2
    first_scores = accuracy.score(task.columns, _mean_weights(in_first_half), task.context)
    second_scores = accuracy.score(task.columns, _mean_weights(~in_first_half), task.context)
    with np.errstate(invalid="ignore"):
        split_differences = first_scores - second_scores
    split_differences = np.where(np.isfinite(split_differences), split_differences, np.nan)
    return TaskRelevance(np.vstack([estimated_scores, posterior_draws]), split_differences)


def _mean_weights(chosen: np.ndarray) -> np.ndarray:
    """Weights of the mean over chosen samples, in the shape of `chosen`, (draws, samples)."""
    weights: np.ndarray = chosen / chosen.sum(axis=1, keepdims=True)
    return weights
