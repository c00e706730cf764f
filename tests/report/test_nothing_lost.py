"""What a page says of a repair where nothing was lost."""

from pathlib import Path

import numpy as np

from lamina_workflow.report import summary
from tests.given.planted_tables import connect_planted_tables, variant_key

N_DOCUMENTS = 100


def right_answers(n_right: int) -> np.ndarray:
    return (np.arange(N_DOCUMENTS) < n_right).astype(float)


def describe_recovered(folder: Path, n_right_bare: int) -> str:
    """What a page says of a repair with 80 right answers, as many as the base model."""
    variants = [
        (variant_key("c", "accuracy"), {"t": right_answers(n_right_bare)}),
        (variant_key("c", "accuracy", repair="ghost"), {"t": right_answers(77)}),
    ]
    calibrations = [{"calibration": "c", "source": "t"}]
    base = {"t": right_answers(80)}
    with connect_planted_tables(folder, base, variants, calibrations) as connection:
        _, table = summary.describe_repairs(connection)
    [row] = table
    return str(row["recovered"])


def test_where_nothing_was_lost_no_share_of_it_is_named(tmp_path: Path) -> None:
    assert describe_recovered(tmp_path, 80) == "−3.0 points; without it, nothing was lost"


def test_what_was_lost_stands_beside_what_a_repair_recovered(tmp_path: Path) -> None:
    assert describe_recovered(tmp_path, 70) == "+7.0 points of 10.0 lost"
