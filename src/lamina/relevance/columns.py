"""A sweep as arrays, with one column per sample and one row per unit; the first row is the model itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.config.metrics import METRICS

ANSWERS = (
    "correct",
    "correct_norm",
)  # the answers, which a plan tells of a removal whatever its metric is


@dataclass(frozen=True)
class Context:
    """Facts that a metric needs beside the numbers."""

    chance: float = 0.0  # accuracy of guessing
    score: str = "acc_norm"  # or `acc`; `acc_norm` divides a choice's log-likelihood by its length
    removed: int = 0  # number of units that the current model lacks
    seed: int = 0  # of what a metric draws
    hard_first: bool = False  # whether units that left early saw the hardest samples (budget `exact`), not random ones

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> "Context":
        """The context of the unpruned model, from a row of table `calibrations`."""
        return cls(calibration["chance_accuracy"], calibration["choice_score"])


@dataclass(frozen=True)
class Columns:
    """`values[name]` has shape (units + 1, samples). Row 0 is the unit `none`. Nulls are NaN, other values that are not
    finite are inf.

    A unit that left the sweep early (budgets `exact` and `race`) has NaN for the samples that it did not see; `seen`,
    of shape (units + 1,), counts the samples that it saw.
    """

    units: tuple[str, ...]
    values: dict[str, np.ndarray]
    seen: np.ndarray
    chosen: str | None = None
    """The unit that a budget settled on."""

    @property
    def n_samples(self) -> int:
        return int(next(iter(self.values.values())).shape[1])

    def has(self, name: str) -> bool:
        """Whether the pass behind this sweep measured `name` for the units."""
        return bool((~np.isnan(self.values[name][1:])).any())


def from_table(sweep: pa.Table) -> Columns:
    """Columns of one gathered sweep; units in order of depth. A column that the table lacks was not measured."""
    unit = sweep["unit"].combine_chunks().dictionary_encode()
    known = unit.dictionary.to_pylist()
    names = [name for name in known if name != "none"]
    names.sort(key=lambda name: (int(name.split(".")[0]), name))
    samples, column = np.unique(np.array(sweep["sample"]), return_inverse=True)
    position = {name: row for row, name in enumerate(["none", *names])}
    row = np.array([position[name] for name in known], dtype=int)[unit.indices.to_numpy()]
    values = {}
    for name in {*ANSWERS, *(column for metric in METRICS.values() for column in metric.columns)}:
        values[name] = np.full((len(position), len(samples)), np.nan)
        if name in sweep.column_names and sweep[name].null_count < len(sweep):
            values[name][row, column] = sweep[name].cast(pa.float64()).to_numpy()
    settled = (
        sweep.filter(sweep["chosen"])["unit"].to_pylist() if "chosen" in sweep.column_names else []
    )
    chosen = settled[0] if settled else None
    return Columns(tuple(names), values, np.bincount(row, minlength=len(position)), chosen)


def hits(values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
    """1 where the answer to a sample is right, in the shape of `values`; length-normalised if `score` is `acc_norm`.

    Text and generated answers have no choices to normalise, so their plain correctness counts.
    """
    if score != "acc_norm":
        return values["correct"]
    normalised = values["correct_norm"]
    lacking = np.isnan(normalised)
    return np.where(lacking, values["correct"], normalised) if lacking.any() else normalised


def weighted_mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means of `values` (units, samples) over the samples that are not NaN, under each weighting: (draws, units).

    A mean is infinite if one of its values is infinite.
    """
    there, finite = ~np.isnan(values), np.isfinite(values)
    infinite = there & ~finite
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (weights @ np.where(finite, values, 0.0).T) / (weights @ there.T.astype(float))
    return (
        np.where(weights @ infinite.T.astype(float) > 0, np.inf, means) if infinite.any() else means
    )


def ratio(weights: np.ndarray, values: np.ndarray, per: np.ndarray | None = None) -> np.ndarray:
    """Sums of `values` per sum of `per`, (units, samples) each, under each weighting: (draws, units).

    Without `per` these are means over the samples that are not NaN.
    """
    means = weighted_mean(weights, values)
    if per is None:
        return means
    with np.errstate(divide="ignore", invalid="ignore"):
        return means / weighted_mean(weights, np.where(np.isnan(values), np.nan, per))


def mean_skewness(values: np.ndarray, per: np.ndarray | None = None) -> np.ndarray:
    """Skewness of the plain `ratio` of each unit, (units,): that of its samples by the root of their number.

    Of a ratio these are the residuals `values` - ratio · `per`. 0 where all samples are alike.
    """
    there = np.isfinite(values)
    per = np.where(there, 1.0 if per is None else per, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(there, values, 0.0).sum(axis=1) / np.nansum(per, axis=1)
        residuals = np.where(there, values - middle[:, None] * per, 0.0)
        cubes = (residuals**3).sum(axis=1)
        skewness = cubes / (residuals**2).sum(axis=1) ** 1.5
    return np.nan_to_num(skewness)


def ratio_errors(
    weights: np.ndarray, values: np.ndarray, per: np.ndarray | None = None
) -> np.ndarray:
    """First-order standard errors of every `ratio`, (draws, units); NaN for a unit that saw one sample."""
    there = np.isfinite(values)
    per = np.where(there, 1.0 if per is None else per, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        # About the plain ratio, so that no digits are lost in squares.
        middle = np.where(there, values, 0.0).sum(axis=1) / np.nansum(per, axis=1)
        rest = np.where(there, values - middle[:, None] * per, np.nan)
        below = weighted_mean(weights, per)
        shift = weighted_mean(weights, rest) / below
        squares, products, others = (
            weighted_mean(weights, term) for term in (rest**2, rest * per, per**2)
        )
        variance = np.maximum(squares - 2 * shift * products + shift**2 * others, 0)
        return np.asarray(np.sqrt(variance / (there.sum(axis=1) - 1)) / below)
