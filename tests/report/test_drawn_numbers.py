"""What every figure draws is what the tables say, asked anew in SQL over the tables alone, without
the views.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pytest
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lamina_workflow.report import database
from lamina_workflow.report.figures import (
    cross_task,
    dissociations,
    distance_curves,
    efficiency_grid,
    relevance_maps,
)
from lamina_workflow.report.figures.drawing import draw_figure
from tests.given.figures import FIGURES

DrawnValue = tuple[float, ...]  # one number, the coordinates of a cell and its number, or a colour


def read_x(figure: Figure) -> Iterable[DrawnValue]:
    """The x coordinates of all lines and points."""
    for axes in figure.axes:
        for line in axes.lines:
            for x in np.asarray(line.get_xdata(), dtype=float):
                yield (float(x),)


def read_y(figure: Figure) -> Iterable[DrawnValue]:
    """The y coordinates of all lines and points."""
    for axes in figure.axes:
        for line in axes.lines:
            for y in np.asarray(line.get_ydata(), dtype=float):
                yield (float(y),)


def read_image_cells(figure: Figure) -> Iterable[DrawnValue]:
    """(column, row, value) of the cells of all images."""
    for axes in figure.axes:
        for image in axes.images:
            values = np.ma.filled(image.get_array().astype(float), np.nan)
            for (row, column), value in np.ndenumerate(values):
                yield (column, row, float(value))


def read_bar_heights(figure: Figure) -> Iterable[DrawnValue]:
    for axes in figure.axes:
        for patch in axes.patches:
            if isinstance(patch, Rectangle):
                yield (patch.get_height(),)


def read_cell_colours(figure: Figure) -> Iterable[DrawnValue]:
    for axes in figure.axes:
        for patch in axes.patches:
            yield tuple(patch.get_facecolor())


def read_cell_numbers(figure: Figure) -> Iterable[DrawnValue]:
    """(column, row, number) of all cells with a number."""
    for axes in figure.axes:
        for text in axes.texts:
            column, row = text.get_position()
            yield (column, row, float(text.get_text()))


class DrawnNumbers(NamedTuple):
    """The numbers that a figure must draw."""

    query: str  # over the tables
    read: Callable[[Figure], Iterable[DrawnValue]]  # how they are found in the drawing
    colours: Colormap | None = None  # where a number is drawn as a colour
    scale: Normalize | None = None


UNREPAIRED = "repair = 'none' AND healing = 'none'"
OWN_TASK = "task = 'microworld_' || calibration AND metric = 'acc_norm'"
MEANS_OVER_CALIBRATIONS = f"""
    SELECT avg(own.value) FROM (FROM benchmarks WHERE {OWN_TASK}) AS own
    GROUP BY model, selector, removed, repair, healing HAVING removed > 0
    QUALIFY count(*) = max(count(*)) OVER (PARTITION BY model, removed)"""
CHANGES = f"""
    SELECT pruned.value - base.value FROM (FROM benchmarks WHERE {UNREPAIRED}) AS pruned
    JOIN benchmarks AS base USING (model, task, metric)
    WHERE pruned.removed = 2 AND base.removed = 0 AND metric = 'acc_norm'"""
RANK_CORRELATIONS = """
    WITH ranked AS (
        SELECT *, rank() OVER scores ::DOUBLE AS position FROM relevance WHERE selector = 'base'
        WINDOW scores AS (PARTITION BY model, calibration, metric ORDER BY score))
    SELECT corr(accuracy.position, cosine.position)
    FROM ranked AS accuracy JOIN ranked AS cosine USING (model, calibration, layer)
    WHERE accuracy.metric = 'accuracy' AND cosine.metric = 'cosine'
    GROUP BY model, calibration"""
ACCURACY_SCORES = """
    SELECT score FROM relevance WHERE selector = 'base' AND metric = 'accuracy'"""
RANK_PAIRS = """
    WITH ranked AS (
        SELECT *, row_number() OVER scores AS position FROM relevance WHERE selector = 'base'
        WINDOW scores AS (PARTITION BY model, calibration, metric ORDER BY score, layer DESC))
    SELECT cosine.position - 1, accuracy.position - 1, count(*)
    FROM ranked AS accuracy JOIN ranked AS cosine USING (model, calibration, layer)
    WHERE accuracy.metric = 'accuracy' AND cosine.metric = 'cosine'
    GROUP BY model, accuracy.position, cosine.position"""
MEAN_SECONDS = r"""
    SELECT avg(seconds) FROM jobs WHERE rule = 'sweep_units'
    GROUP BY regexp_extract(wildcards, 'model=(\w+)', 1)"""

SCORES_OF_STEPS = """
    SELECT layer, removed, score FROM relevance
    WHERE metric IN ('accuracy', 'cosine') AND selector IN (metric, 'base')"""
SCORES_OF_CHECKPOINTS = """
    SELECT layer, step // 1000, score FROM relevance JOIN models USING (model)
    WHERE metric IN ('accuracy', 'cosine') AND selector = 'base'"""
CHANNEL_ERRORS = """
    SELECT unnest(channel_mae_before || channel_mae_after) FROM (
        SELECT any_value(channel_mae_before) AS channel_mae_before,
            any_value(channel_mae_after) AS channel_mae_after
        FROM patches GROUP BY model, calibration)"""

DRAWN_NUMBERS = {
    "relevance_maps": DrawnNumbers(
        ACCURACY_SCORES, read_cell_colours, relevance_maps.ACCURACY, relevance_maps.ACCURACY_SCALE
    ),
    "cosine_scatter": DrawnNumbers(ACCURACY_SCORES, read_y),
    "rank_confusion": DrawnNumbers(RANK_PAIRS, read_cell_numbers),
    "relevance_by_step": DrawnNumbers(SCORES_OF_STEPS, read_image_cells),
    "checkpoint_maps": DrawnNumbers(SCORES_OF_CHECKPOINTS, read_image_cells),
    "metric_agreement": DrawnNumbers(RANK_CORRELATIONS, read_x),
    "cost_of_metrics": DrawnNumbers(MEAN_SECONDS, read_x),
    "what_layers_do": DrawnNumbers("SELECT value FROM diagnoses WHERE measure = 'void'", read_y),
    "angular_triangle": DrawnNumbers(
        "SELECT layer, span - 1, angular_last FROM activations", read_image_cells
    ),
    "distance_curves": DrawnNumbers("SELECT angular_last FROM activations WHERE span > 0", read_y),
    "pruning_curves": DrawnNumbers(
        f"SELECT value FROM benchmarks WHERE {OWN_TASK} AND {UNREPAIRED} AND removed > 0", read_y
    ),
    "repair_frontier": DrawnNumbers(MEANS_OVER_CALIBRATIONS, read_y),
    "selector_comparisons": DrawnNumbers(
        "SELECT 100 * difference FROM comparisons WHERE task = 'all'", read_x
    ),
    "cross_task": DrawnNumbers(CHANGES, read_cell_colours, cross_task.COLOURS, cross_task.SCALE),
    "repetition_maps": DrawnNumbers(
        r"""SELECT regexp_extract(units[1], '\d+')::INT, -removed - 1, change
        FROM searches WHERE strategy = 'repeat' AND stage = '1'""",
        read_image_cells,
    ),
    "repair_bars": DrawnNumbers(
        f"SELECT value FROM benchmarks WHERE {OWN_TASK} AND removed = 2", read_bar_heights
    ),
    "boundary_errors": DrawnNumbers(CHANNEL_ERRORS, read_y),
    "training_curves": DrawnNumbers(
        """SELECT validation_loss FROM training
        WHERE validation_loss IS NOT NULL AND healing = 'lora'""",
        read_y,
    ),
    "healed_scores": DrawnNumbers(
        f"""SELECT value FROM benchmarks JOIN (
            SELECT DISTINCT model, calibration, selector, removed, repair FROM training)
            USING (model, calibration, selector, removed, repair) WHERE {OWN_TASK}""",
        read_y,
    ),
    "dissociations": DrawnNumbers(
        "SELECT difference FROM dissociations WHERE component = 'layer'",
        read_cell_colours,
        dissociations.COLOURS,
        dissociations.SCALE,
    ),
    "efficiency": DrawnNumbers(
        """SELECT any_value(latency_ratio) FROM efficiency WHERE removed > 0 AND main
        GROUP BY model, timed""",
        read_x,
    ),
    "efficiency_grid": DrawnNumbers(
        """SELECT DISTINCT least(1, greatest(-1, -log2(latency_ratio))) FROM efficiency
        WHERE removed > 0""",
        read_cell_colours,
        efficiency_grid.COLOURS,
        efficiency_grid.SCALE,
    ),
}
# Draws that no SQL repeats; tests/relevance/test_metric_agreement.py repeats them.
DRAWN_BY_CHANCE = {"calibration_size"}
# Rows of single measurements: the figure draws their mean with its interval, or one fit each.
WITHOUT_INTERVAL = {"cost_of_metrics", "training_curves"}


def connect(name: str, folder: Path) -> duckdb.DuckDBPyConnection:
    """The tables of a figure and the views over them."""
    tables = [folder / f"{table}.parquet" for table in FIGURES[name].TABLES]
    return database.connect_views(tables)


def ask_tables(query: str, folder: Path) -> list[DrawnValue]:
    """The answer of the tables of a run, without any view."""
    with duckdb.connect() as connection:
        for file in folder.glob("*.parquet"):
            connection.execute(f"CREATE VIEW {file.stem} AS FROM '{file}'")
        return connection.execute(query).fetchall()


def count_values(values: Iterable[DrawnValue]) -> Counter[DrawnValue]:
    """How often each value occurs; numbers that only rounding distinguishes are equal."""
    counts: Counter[DrawnValue] = Counter()
    for value in values:
        rounded = tuple(round(float(number), 7) + 0.0 for number in value)
        if not any(math.isnan(number) for number in rounded):
            counts[rounded] += 1
    return counts


def test_every_figure_is_asked() -> None:
    assert DRAWN_NUMBERS.keys() | DRAWN_BY_CHANCE == FIGURES.keys()


@pytest.mark.parametrize("name", DRAWN_NUMBERS)
def test_the_drawing_has_the_numbers_of_the_tables(name: str, two_models: Path) -> None:
    numbers = DRAWN_NUMBERS[name]
    expected = ask_tables(numbers.query, two_models)
    if numbers.colours is not None and numbers.scale is not None:
        expected = [numbers.colours(numbers.scale(value)) for (value,) in expected]
    assert expected
    figure = draw_figure(name, connect(name, two_models)).figure
    missing = count_values(expected) - count_values(numbers.read(figure))
    assert not missing


@pytest.mark.parametrize("name", FIGURES)
def test_the_numbers_beside_a_figure_have_counts_and_intervals(name: str, two_models: Path) -> None:
    drawing = draw_figure(name, connect(name, two_models))
    columns = next(csv.reader(io.StringIO(drawing.csv)))
    has_counts = any(re.match(r"n_|n$|repeats|.*_samples$", column) for column in columns)
    has_intervals = any(re.search(r"stderr|low$|reach|difference", column) for column in columns)
    assert has_counts or name in WITHOUT_INTERVAL
    assert has_intervals or name in WITHOUT_INTERVAL


def test_the_black_line_joins_the_minimum_of_each_curve(two_models: Path) -> None:
    """The block that block pruning removes, for each size [2403.17887, eq. 6]."""
    query = """
        SELECT model, calibration, list(start ORDER BY span), list(least ORDER BY span) FROM (
            SELECT model, calibration, span, arg_min(layer, angular_last) AS start,
                min(angular_last) AS least
            FROM activations WHERE span > 0 GROUP BY ALL)
        GROUP BY ALL ORDER BY ALL"""
    figure = draw_figure("distance_curves", connect("distance_curves", two_models)).figure
    black_lines = []
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_color() == distance_curves.MINIMUM_STYLE["color"]:
                black_lines.append(line)
    expected = ask_tables(query, two_models)
    assert len(black_lines) == len(expected) == 4
    for line, (_, _, starts, angles) in zip(black_lines, expected, strict=True):
        assert line.get_xdata().tolist() == starts
        assert line.get_ydata().tolist() == pytest.approx(angles)


def test_of_many_pairs_the_significant_ones_are_drawn_and_the_caption_says_so(
    two_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pairs: the largest difference is not significant, and two smaller ones are."""
    connection = connect("dissociations", two_models)
    pairs = [("large", 0.9, False), ("medium", 0.6, True), ("small", 0.5, True)]
    selections = [
        f"""SELECT * REPLACE ('{rival}' AS rival, {difference}::DOUBLE AS difference,
            {is_significant} AS sure) FROM dissociations"""
        for rival, difference, is_significant in pairs
    ]
    connection.execute(f"CREATE TABLE made_up AS {' UNION ALL '.join(selections)}")
    connection.execute("DROP VIEW dissociations; ALTER TABLE made_up RENAME TO dissociations")
    assert "pairs are drawn" not in draw_figure("dissociations", connection).caption

    monkeypatch.setattr(dissociations, "MAX_PAIRS", 1)
    drawing = draw_figure("dissociations", connection)
    assert "Only 1 of 3 pairs are drawn" in drawing.caption
    labels = drawing.figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["recall − medium"]
