"""The rows that every diagnosis returns."""

from collections.abc import Mapping
from typing import TypedDict, cast

Estimate = Mapping[str, float | int | None]
"""A value, its 95 % interval and its number of samples, as `lamina.relevance.statistics.ratios`
gives them.
"""


class DiagnosisRow(TypedDict, total=False):
    """A row of table `diagnoses` without its keys; a column that is left out is null."""

    measure: str
    layer: int  # a layer or a boundary; left out for a measure of the whole model
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n_samples: int
    control: float


def make_row(
    measure: str, estimate: Estimate, layer: int | None = None, control: float | None = None
) -> DiagnosisRow:
    """The row of one measure."""
    row: dict[str, object] = {"measure": measure, **estimate}
    if layer is not None:
        row["layer"] = layer
    if control is not None:
        row["control"] = control
    return cast(DiagnosisRow, row)
