"""A sweep as arrays, with one row per unit and one column per sample.

The first row is the model before the removal.

Weighted means over the samples are here too, with their standard errors and skewness: they depend
on which samples a unit saw.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.models.units import parse_unit
from lamina.options.metrics import METRICS

ANSWERS = ("correct", "correct_norm")
"""Columns that say whether answers are right. A plan reports accuracy whatever its metric is."""


@dataclass(frozen=True)
class Context:
    """What a metric needs to know about a calibration and the step, in addition to measurements."""

    chance: float = 0.0
    """Accuracy of guessing."""

    score: str = "acc_norm"
    """How choices are compared: `acc`, or `acc_norm`, which divides a choice's log-likelihood by
    its length.
    """

    removed: int = 0
    """Number of units that the current model lacks."""

    seed: int = 0
    """Seed of the random draws of a metric."""

    @classmethod
    def from_calibration(cls, calibration: Mapping[str, Any]) -> "Context":
        """The context of the base model, from a row of table `calibrations`."""
        return cls(calibration["chance_accuracy"], calibration["choice_score"])


@dataclass(frozen=True)
class Columns:
    """The measured numbers of one sweep."""

    units: tuple[str, ...]
    """Units in order of depth, without `none`, which is the current model."""

    values: dict[str, np.ndarray]
    """By name of a column of table `sweeps`: (1 + units, samples), where row 0 is the unit `none`.

    NaN means not measured. Measured numbers that are not finite are inf.
    """

    seen: np.ndarray
    """Number of samples on which each unit was measured, (1 + units,)."""

    @property
    def n_samples(self) -> int:
        """Number of samples that the current model saw."""
        any_column = next(iter(self.values.values()))
        return int(any_column.shape[1])

    def is_measured(self, column: str) -> bool:
        """Whether the pass behind this sweep measured a column for the units."""
        of_units = self.values[column][1:]
        return bool((~np.isnan(of_units)).any())


def from_table(sweep: pa.Table) -> Columns:
    """Columns of one gathered sweep.

    Units are in order of depth. A column that the table lacks was not measured. Several passes may
    have rows for the same unit and sample; each fills other columns.
    """
    unit_column = sweep["unit"].combine_chunks().dictionary_encode()
    table_units = unit_column.dictionary.to_pylist()
    units = [unit for unit in table_units if unit != "none"]
    units.sort(key=lambda unit: (parse_unit(unit)[0], unit))

    row_of_unit = {unit: row for row, unit in enumerate(["none", *units])}
    row_of_code = np.array([row_of_unit[unit] for unit in table_units], dtype=int)
    table_rows = row_of_code[unit_column.indices.to_numpy()]
    distinct_samples, sample_indices = np.unique(np.array(sweep["sample"]), return_inverse=True)

    values_by_column: dict[str, np.ndarray] = {}
    for name in _column_names():
        values_by_column[name] = np.full((len(row_of_unit), len(distinct_samples)), np.nan)
        if name in sweep.column_names and sweep[name].null_count < len(sweep):
            numbers = sweep[name].cast(pa.float64()).to_numpy()
            is_measured = ~np.isnan(numbers)
            positions = table_rows[is_measured], sample_indices[is_measured]
            values_by_column[name][positions] = numbers[is_measured]

    n_seen = np.bincount(table_rows, minlength=len(row_of_unit))
    return Columns(tuple(units), values_by_column, n_seen)


def _column_names() -> set[str]:
    """Columns of table `sweeps` that some metric reads."""
    names = set(ANSWERS)
    for metric in METRICS.values():
        names.update(metric.columns)
    return names


def correct_answers(values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
    """1 where the answer to a sample is right, in the shape of `values`.

    Choices are compared by length-normalised log-likelihood if `score` is `acc_norm`.

    Texts and generated answers have no choices to normalise, so their plain correctness counts.
    """
    if score != "acc_norm":
        return values["correct"]
    normalised_correct = values["correct_norm"]
    has_no_choices = np.isnan(normalised_correct)
    if not has_no_choices.any():
        return normalised_correct
    return np.where(has_no_choices, values["correct"], normalised_correct)


def weighted_mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means over the samples that are not NaN under each weighting, (draws, units).

    weights: (draws, samples).
    values: (units, samples). A mean is infinite if one of its values is.
    """
    is_measured = ~np.isnan(values)
    is_finite = np.isfinite(values)
    is_infinite = is_measured & ~is_finite
    with np.errstate(divide="ignore", invalid="ignore"):
        weighted_sums = weights @ np.where(is_finite, values, 0.0).T
        weighted_means = weighted_sums / (weights @ is_measured.T.astype(float))
    if not is_infinite.any():
        return weighted_means
    has_infinite = weights @ is_infinite.T.astype(float) > 0
    return np.where(has_infinite, np.inf, weighted_means)


def weighted_ratio(
    weights: np.ndarray, numerators: np.ndarray, denominators: np.ndarray | None = None
) -> np.ndarray:
    """Σ w · numerator / Σ w · denominator over the samples under each weighting, (draws, units).

    weights: (draws, samples).
    numerators, denominators: (units, samples) each. Without denominators these are means over the
        samples that are not NaN.
    """
    means = weighted_mean(weights, numerators)
    if denominators is None:
        return means
    counted_denominators = np.where(np.isnan(numerators), np.nan, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        return means / weighted_mean(weights, counted_denominators)


def weighted_ratio_errors(
    weights: np.ndarray, numerators: np.ndarray, denominators: np.ndarray | None = None
) -> np.ndarray:
    """First-order standard error of every `weighted_ratio`, (draws, units).

    NaN for a unit that saw one sample.
    """
    n_finite = np.isfinite(numerators).sum(axis=1)
    denominators = _finite_denominators(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Residuals of the plain ratio: squares of the raw numerators would lose digits.
        residuals = _ratio_residuals(numerators, denominators)
        mean_denominator = weighted_mean(weights, denominators)
        ratio_shift = weighted_mean(weights, residuals) / mean_denominator
        residual_squares = weighted_mean(weights, residuals**2)
        residual_products = weighted_mean(weights, residuals * denominators)
        denominator_squares = weighted_mean(weights, denominators**2)
        variance = (
            residual_squares
            - 2 * ratio_shift * residual_products
            + ratio_shift**2 * denominator_squares
        )
        variance = np.maximum(variance, 0)
        return np.asarray(np.sqrt(variance / (n_finite - 1)) / mean_denominator)


def mean_skewness(numerators: np.ndarray, denominators: np.ndarray | None = None) -> np.ndarray:
    """Skewness of the plain mean or ratio of each unit, (units,).

    It is the skewness of the unit's samples divided by the root of their number. For a ratio, that
    of the residuals numerator - ratio · denominator. 0 where all samples are equal.
    """
    denominators = _finite_denominators(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        residuals = np.nan_to_num(_ratio_residuals(numerators, denominators))
        cube_sums = (residuals**3).sum(axis=1)
        skewness = cube_sums / (residuals**2).sum(axis=1) ** 1.5
    return np.nan_to_num(skewness)


def _finite_denominators(numerators: np.ndarray, denominators: np.ndarray | None) -> np.ndarray:
    """Denominators, 1 for means, (units, samples); NaN where the numerator is not finite."""
    return np.where(np.isfinite(numerators), 1.0 if denominators is None else denominators, np.nan)


def _ratio_residuals(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """numerator - ratio · denominator, (units, samples); NaN where the numerator is not finite."""
    is_finite = np.isfinite(numerators)
    plain_ratios = np.where(is_finite, numerators, 0.0).sum(axis=1) / np.nansum(
        denominators, axis=1
    )
    return np.where(is_finite, numerators - plain_ratios[:, None] * denominators, np.nan)
