"""Selectors are compared as they are meant: each plan with the repair with which it was chosen."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from lamina.store import parquet
from lamina_workflow.report import database, summary
from lamina_workflow.report.answers import answer_question
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.report.paired_tests import AS_CHOSEN, compare_selectors
from tests.given.planted_tables import connect_planted_tables, variant_key

N_DOCUMENTS = 100


def right_answers(n_right: int) -> np.ndarray:
    return (np.arange(N_DOCUMENTS) < n_right).astype(float)


def plan_rows(selector: str, repair: str) -> list[dict[str, object]]:
    key = {"model": "m", "calibration": "c", "selector": selector, "removed": 1}
    return [{**key, "unit": "3", "position": 1, "repair": repair}]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A portfolio that is worst bare and best with the ghost for which its set was chosen."""
    variants = [
        (variant_key("c", "accuracy"), {"t": right_answers(80)}),
        (variant_key("c", "accuracy", repair="ghost"), {"t": right_answers(84)}),
        (variant_key("c", "portfolio"), {"t": right_answers(60)}),
        (variant_key("c", "portfolio", repair="ghost"), {"t": right_answers(95)}),
    ]
    connect_planted_tables(
        tmp_path,
        {"t": right_answers(98)},
        variants,
        [dict(calibration="c", source="t")],
        plans=plan_rows("accuracy", "none") + plan_rows("portfolio", "ghost"),
    ).close()
    with database.connect_views(tmp_path.glob("*.parquet")) as without_comparisons:
        comparisons = parquet.from_rows("comparisons", compare_selectors(without_comparisons))
    parquet.write_table(tmp_path / "comparisons.parquet", comparisons)
    with database.connect_views(tmp_path.glob("*.parquet")) as views:
        yield views


def test_selectors_are_compared_with_the_repairs_that_they_chose(connection):
    rows = {row["repair"]: row for row in answer_question(connection, "which_selector_wins")}

    assert rows[AS_CHOSEN]["difference"] == pytest.approx(0.80 - 0.95)
    assert rows["none"]["difference"] == pytest.approx(0.80 - 0.60)
    assert rows["ghost"]["difference"] == pytest.approx(0.84 - 0.95)
    assert rows["none"]["rival_chosen_for"] == "ghost"
    assert rows["none"]["chosen_for"] is None


def test_the_summary_compares_plans_as_chosen_first_and_says_which_are_bare(connection):
    chosen_sentence, chosen_table, bare_sentence, bare_table = summary.compare_selectors(
        connection, []
    )

    assert "the repair that its selector chose" in chosen_sentence
    assert chosen_table[0]["against"] == "portfolio with ghost"
    assert chosen_table[0]["points of accuracy, mean"] == "−15.0"
    assert "Without repair" in bare_sentence
    assert bare_table[0]["against"] == "portfolio (bare; chosen for a repair)"


def test_curves_show_a_plan_with_its_repair_and_bare(connection):
    drawing = draw_figure("pruning_curves", connection)

    [axes] = drawing.figure.axes
    heights = [list(line.get_ydata()) for line in axes.get_lines() if line.get_marker() != "None"]
    assert [0.98, 0.8] in heights
    assert [0.98, 0.95] in heights
    assert [0.98, 0.6] in heights
    [legend] = drawing.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:3] == ["accuracy", "portfolio with its repair", "portfolio, bare"]


def test_the_figure_of_comparisons_marks_bare_plans(connection):
    figure = draw_figure("selector_comparisons", connection).figure

    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [
        "accuracy − portfolio with ghost",
        "no repair:  accuracy − portfolio (bare)",
        "ghost:  accuracy − portfolio",
    ]
