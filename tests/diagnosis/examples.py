"""What the tests of diagnoses share."""

from collections.abc import Sequence

from lamina.diagnosis.rows import DiagnosisRow
from lamina.store import parquet

RowKey = tuple[str, int | None]
"""Measure and layer."""


def rows_by_measure(rows: Sequence[DiagnosisRow], kind: str) -> dict[RowKey, DiagnosisRow]:
    """Rows by measure and layer; they are also checked to fit into table `diagnoses`."""
    parquet.from_rows("diagnoses", rows, model="m", calibration="c", diagnosis="d", kind=kind)
    return {(row["measure"], row.get("layer")): row for row in rows}
