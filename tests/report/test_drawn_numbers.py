"""What every figure draws is what the tables say, asked anew in SQL over the tables alone, without the views."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lamina.report import database
from lamina.report.figures import cross_task, dissociations, relevance_maps
from lamina.report.figures.drawing import draw_figure
from tests.given.figures import FIGURES
from tests.given.plausible_tables import VIEWS

Drawn = Callable[[Figure], Iterable[object]]


def lines(axis: str) -> Drawn:
    """Coordinates of all lines and points."""

    def drawn(figure: Figure) -> Iterable[object]:
        for line in (line for axes in figure.axes for line in axes.lines):
            yield from np.asarray(
                line.get_xdata() if axis == "x" else line.get_ydata(), dtype=float
            )

    return drawn


def images(figure: Figure) -> Iterable[object]:
    """(column, row, value) of the cells."""
    for axes in figure.axes:
        for image in axes.images:
            shown = np.ma.filled(image.get_array().astype(float), np.nan)
            yield from ((column, row, value) for (row, column), value in np.ndenumerate(shown))


def heights(figure: Figure) -> Iterable[object]:
    return [
        patch.get_height()
        for axes in figure.axes
        for patch in axes.patches
        if isinstance(patch, Rectangle)
    ]


def fills(figure: Figure) -> Iterable[object]:
    return [patch.get_facecolor() for axes in figure.axes for patch in axes.patches]


BARE = "repair = 'none' AND healing = 'none'"
OWN = "task = 'microworld_' || calibration AND metric = 'acc_norm'"
MEANS = f"""SELECT avg(a.value) FROM (FROM benchmarks WHERE {OWN}) AS a
    GROUP BY model, selector, removed, repair, healing HAVING removed > 0
    QUALIFY count(*) = max(count(*)) OVER (PARTITION BY model, removed)"""
CHANGE = f"""SELECT v.value - b.value FROM (FROM benchmarks WHERE {BARE}) AS v
    JOIN benchmarks AS b USING (model, task, metric)
    WHERE v.removed = 2 AND b.removed = 0 AND metric = 'acc_norm'"""
RANKS = """WITH ranked AS (
        SELECT *, rank() OVER (PARTITION BY model, calibration, metric ORDER BY score)::DOUBLE AS place
        FROM relevance WHERE selector = 'base')
    SELECT corr(a.place, c.place) FROM ranked AS a JOIN ranked AS c USING (model, calibration, layer)
    WHERE a.metric = 'accuracy' AND c.metric = 'cosine' GROUP BY model, calibration"""
BASE = "SELECT {} FROM relevance WHERE selector = 'base'"

# Of each figure: a question to its tables, how the answer is found in the drawing, and what is drawn of a number.
ASKED: dict[str, tuple[str, Drawn]] = {
    "relevance_maps": (BASE.format("score") + " AND metric = 'accuracy'", fills),
    "metric_agreement": (RANKS, lines("x")),
    "cost_of_metrics": (
        """SELECT avg(seconds) FROM jobs WHERE rule = 'sweep_units'
        GROUP BY regexp_extract(wildcards, 'model=(\\w+)', 1)""",
        lines("x"),
    ),
    "what_layers_do": ("SELECT value FROM diagnoses WHERE measure = 'void'", lines("y")),
    "angular_triangle": ("SELECT layer, span - 1, angular_last FROM activations", images),
    "pruning_curves": (
        f"SELECT value FROM benchmarks WHERE {OWN} AND {BARE} AND removed > 0",
        lines("y"),
    ),
    "repair_frontier": (MEANS, lines("y")),
    "selector_comparisons": (
        "SELECT 100 * difference FROM comparisons WHERE task = 'all'",
        lines("x"),
    ),
    "cross_task": (CHANGE, fills),
    "repair_bars": (f"SELECT value FROM benchmarks WHERE {OWN} AND removed = 2", heights),
    "training_curves": (
        "SELECT validation_loss FROM training WHERE validation_loss IS NOT NULL",
        lines("y"),
    ),
    "dissociations": ("SELECT difference FROM dissociations WHERE component = 'layer'", fills),
    "efficiency": ("SELECT latency_ratio FROM efficiency WHERE removed > 0", lines("x")),
}
SCALES = {
    "relevance_maps": (relevance_maps.ACCURACY, relevance_maps.ACCURACY_SCALE),
    "cross_task": (cross_task.COLOURS, cross_task.SCALE),
    "dissociations": (dissociations.COLOURS, dissociations.SCALE),
}
COMPUTED = {
    "calibration_size"
}  # draws that no SQL repeats: tests/relevance/test_metric_agreement.py repeats them
# Rows that are single measurements, of which the figure draws the mean and its interval, or one fit each.
WITHOUT_INTERVAL = {"cost_of_metrics", "training_curves"}


def of(name: str, folder: Path) -> duckdb.DuckDBPyConnection:
    return database.connect(VIEWS, [folder / f"{table}.parquet" for table in FIGURES[name].TABLES])


def alike(number: object) -> object:
    """Numbers that rounding tells apart must compare equal."""
    return tuple(map(alike, number)) if isinstance(number, tuple) else round(float(number), 7) + 0.0  # type: ignore[arg-type]


def test_every_figure_is_asked() -> None:
    assert ASKED.keys() | COMPUTED == FIGURES.keys()


@pytest.mark.parametrize("name", ASKED)
def test_the_drawing_has_the_numbers_of_the_tables(name: str, two_models: Path) -> None:
    question, found = ASKED[name]
    with duckdb.connect() as tables:
        for file in two_models.glob("*.parquet"):
            tables.execute(f"CREATE VIEW {file.stem} AS FROM '{file}'")
        wanted = [row[0] if len(row) == 1 else row for row in tables.execute(question).fetchall()]
    if found is fills:
        colours, scale = SCALES[name]
        wanted = [colours(scale(value)) for value in wanted]
    shown = Counter(map(alike, found(draw_figure(name, of(name, two_models)).figure)))
    assert wanted
    assert not Counter(map(alike, wanted)) - shown


@pytest.mark.parametrize("name", FIGURES)
def test_the_numbers_beside_a_figure_have_counts_and_intervals(name: str, two_models: Path) -> None:
    first = next(csv.DictReader(io.StringIO(draw_figure(name, of(name, two_models)).csv)))
    assert (
        any(re.match(r"n_|n$|repeats|.*_samples$", column) for column in first)
        or name in WITHOUT_INTERVAL
    )
    assert (
        any(re.search(r"stderr|low$|reach|difference", column) for column in first)
        or name in WITHOUT_INTERVAL
    )


def test_of_many_pairs_the_widest_sure_ones_are_drawn_and_the_caption_says_so(
    two_models: Path, monkeypatch
) -> None:
    connection = of("dissociations", two_models)
    extra = (
        "SELECT * REPLACE ('{}' AS rival, {}::DOUBLE AS difference, {} AS sure) FROM dissociations"
    )
    more = (
        extra.format("unsure", 0.9, False),
        extra.format("more", 0.6, True),
        extra.format("less", 0.5, True),
    )
    connection.execute(f"CREATE TABLE wider AS {' UNION ALL '.join(more)}")
    connection.execute("DROP VIEW dissociations; ALTER TABLE wider RENAME TO dissociations")
    assert "Drawn are" not in draw_figure("dissociations", connection).caption
    monkeypatch.setattr(dissociations, "MAX_PAIRS", 1)
    assert "Drawn are 1 of 3 pairs" in draw_figure("dissociations", connection).caption
    labels = draw_figure("dissociations", connection).figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["recall − more"]
