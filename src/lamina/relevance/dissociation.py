"""Which units one task needs more than another: D = R(task) - R(rival), where R is accuracy relevance.

A *double* dissociation has sure units of both signs. With units of only one sign, it may simply be easier to break one
of the tasks. Draws of a task's relevance are those of its interval in table `relevance`. Two random halves of one task
differ by chance alone; they give the band that a difference must leave.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from scipy.stats import false_discovery_control

from lamina.relevance.columns import Columns, Context, from_table
from lamina.relevance.metric_agreement import base_sweeps
from lamina.relevance.metrics.answers import Accuracy
from lamina.relevance.statistics import interval

DRAWS = 4000  # With 4,000 draws p reaches down to 0.0005, which one of a hundred units needs to be sure by itself
HALVES = 1000
LEVEL = 0.05

accuracy = Accuracy()


def dissociations(
    calibrations: Sequence[Mapping[str, Any]], sweeps: pa.Table | dataset.Dataset
) -> Iterator[dict[str, Any]]:
    """Rows of table `dissociations`; `calibrations` are the rows of that table."""
    by_kind: dict[tuple[str, str], list[tuple[str, Columns, Context]]] = {}
    for row, kind, table in base_sweeps(calibrations, sweeps):
        table = table.filter(pc.is_valid(table["correct"]))
        if not len(table):
            continue
        columns, context = from_table(table), Context.of(row)
        if columns.units and accuracy.undefined(columns, context) is None:
            by_kind.setdefault((row["model"], kind), []).append(
                (row["calibration"], columns, context)
            )
    for (model, kind), tasks in sorted(by_kind.items()):
        drawn = [
            _drawn(columns, context, number) for number, (_, columns, context) in enumerate(tasks)
        ]
        for one, other in combinations(range(len(tasks)), 2):
            (name, columns, _), (rival, theirs, _) = tasks[one], tasks[other]
            if columns.units != theirs.units:
                continue
            keys: dict[str, Any] = {
                "model": model,
                "component": kind,
                "calibration": name,
                "rival": rival,
            }
            keys |= {"n_samples": columns.n_samples, "n_rival": theirs.n_samples}
            columns_of = compared(drawn[one], drawn[other])
            for place, unit in enumerate(columns.units):
                values = {key: column[place].item() for key, column in columns_of.items()}
                yield keys | {"unit": unit, "layer": int(unit.split(".")[0])} | values


def compared(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns of the table, (units,) each, from the relevance of both tasks.

    Each task gives its relevance, (1 + draws, units), whose first row is the estimate, and the differences between its
    halves, (halves, units).
    """
    draws = first[0] - second[0]
    draws = np.where(np.isfinite(draws), draws, np.nan)
    low, high = interval(draws[1:])
    low, high = np.fmin(low, draws[0]), np.fmax(high, draws[0])
    beyond = 1 + np.minimum((draws[1:] <= 0).sum(axis=0), (draws[1:] >= 0).sum(axis=0))
    p = np.minimum(1, 2 * beyond / len(draws))
    bands = np.array([interval(halves) for halves in (first[1], second[1])])
    null = {"null_low": bands[:, 0].min(axis=0), "null_high": bands[:, 1].max(axis=0)}
    q = false_discovery_control(p)
    outside = (draws[0] < null["null_low"]) | (draws[0] > null["null_high"])
    tested = {"difference": draws[0], "ci_low": low, "ci_high": high, "p_value": p, "q_value": q}
    return tested | null | {"sure": outside & (q <= LEVEL)}


def _drawn(columns: Columns, context: Context, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The relevance of a task for `compared`. Each task has another `seed`, so that their draws are independent."""
    count = columns.n_samples
    estimate = accuracy.score(columns, np.full((1, count), 1 / count), context)
    draws = np.vstack([estimate, accuracy.posterior(columns, context, seed, DRAWS)])
    generator = np.random.default_rng([seed, 1])
    half = generator.random((HALVES, count)).argsort(axis=1).argsort(axis=1) < count // 2
    one, other = (
        accuracy.score(columns, side / side.sum(axis=1, keepdims=True), context)
        for side in (half, ~half)
    )
    with np.errstate(invalid="ignore"):
        apart = one - other
    # A half that is at chance has no relevance.
    return draws, np.where(np.isfinite(apart), apart, np.nan)
