"""Numbers of the page that follow from a base model and what a variant lost, in edge cases."""

from pathlib import Path

import numpy as np

from lamina_workflow.report import explorer, summary
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
    assert describe_recovered(tmp_path, 80) == "−3.0 points; pruning had cost nothing"


def test_what_was_lost_stands_beside_what_a_repair_recovered(tmp_path: Path) -> None:
    assert describe_recovered(tmp_path, 70) == "+7.0 points of 10.0 lost"


def test_a_base_model_has_the_score_of_its_variants_only_task(tmp_path: Path) -> None:
    variants = [(variant_key("c", "accuracy"), {"t": right_answers(70), "u": right_answers(60)})]
    calibrations = [{"calibration": "c", "source": "t"}]
    base_answers = {"t": right_answers(80), "u": right_answers(50)}
    with connect_planted_tables(tmp_path, base_answers, variants, calibrations) as connection:
        base, pruned = explorer.list_variants(connection)

    assert (base["own_tasks"], base["own_value"], base["own_samples"]) == ("t", 0.8, N_DOCUMENTS)
    assert base["own_stderr"] > 0
    assert pruned["own_value"] == 0.7


def test_a_base_model_of_variants_with_several_tasks_has_none_of_its_own(tmp_path: Path) -> None:
    variants = [
        (variant_key("c", "accuracy"), {"t": right_answers(70)}),
        (variant_key("d", "accuracy"), {"u": right_answers(60)}),
    ]
    calibrations = [
        {"calibration": "c", "source": "t"},
        {"calibration": "d", "source": "u"},
    ]
    base_answers = {"t": right_answers(80), "u": right_answers(50)}
    with connect_planted_tables(tmp_path, base_answers, variants, calibrations) as connection:
        base, *_ = explorer.list_variants(connection)

    assert base["own_value"] is None
