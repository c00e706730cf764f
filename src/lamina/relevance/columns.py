"""A sweep as arrays: one row per unit, the model itself first, one column per sample."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Columns:
    """`values[name]` has shape (units + 1, samples); row 0 is the unit `none`, nulls are NaN.

    A unit that left the sweep early (budgets `exact` and `race`) has NaN for the samples that it did not see; `seen`,
    of shape (units + 1,), counts those that it did.
    """

    units: tuple[str, ...]
    values: dict[str, np.ndarray]
    seen: np.ndarray

    @property
    def n_samples(self) -> int:
        """Number of samples in the sweep."""
        return int(next(iter(self.values.values())).shape[1])

    def has(self, name: str) -> bool:
        """Whether the pass behind this sweep measured `name` for the units."""
        return bool(np.isfinite(self.values[name][1:]).any())


MEASURED = (
    "correct",
    "correct_norm",
    "nll",
    "n_tokens",
    "output_cosine",
    "output_norm",
    "output_js",
    "output_kl",
    "cosine",
    "angular_last",
    "taylor",
    "magnitude",
)


def from_table(sweep: pa.Table) -> Columns:
    """Columns of one gathered sweep; units in order of depth."""
    unit = np.array(sweep["unit"].to_pylist())
    names = [name for name in dict.fromkeys(unit.tolist()) if name != "none"]
    names.sort(key=lambda name: (int(name.split(".")[0]), name))
    samples, column = np.unique(np.array(sweep["sample"]), return_inverse=True)
    position = {name: row for row, name in enumerate(["none", *names])}
    row = np.array([position[name] for name in unit.tolist()])
    values = {}
    for name in MEASURED:
        values[name] = np.full((len(position), len(samples)), np.nan)
        values[name][row, column] = np.array(sweep[name].cast(pa.float64()).to_pylist(), dtype=float)
    return Columns(tuple(names), values, np.bincount(row, minlength=len(position)))


def weighted_mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means of `values` (units, samples) over the samples that are there, under each weighting: (draws, units)."""
    there = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (weights @ np.where(there, values, 0.0).T) / (weights @ there.T.astype(float))
