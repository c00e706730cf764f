"""The type of the rows that every diagnosis returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from lamina.relevance.statistics import EstimateRow


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
    measure: str, estimate: EstimateRow, layer: int | None = None, control: float | None = None
) -> DiagnosisRow:
    """The row of one measure."""
    row: DiagnosisRow = {
        "measure": measure,
        "value": estimate["value"],
        "ci_low": estimate["ci_low"],
        "ci_high": estimate["ci_high"],
        "n_samples": estimate["n_samples"],
    }
    if layer is not None:
        row["layer"] = layer
    if control is not None:
        row["control"] = control
    return row
