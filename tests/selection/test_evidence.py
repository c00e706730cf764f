"""A plan reads its metric from the sweep: against the rank of each unit in the relevance table."""

from typing import Any

import pyarrow as pa
import pytest

from lamina.engine import sweep, weights
from lamina.engine.candidates import CURRENT
from lamina.errors import LaminaError
from lamina.models.units import all_units
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.selection.choosing import read_step
from lamina.store import parquet
from tests.given import tiny
from tests.given.cut_models import random_samples
from tests.given.slow import mark_slow

N_SAMPLES = 40

CHANCE_BELOW = -5.0
"""Below any accuracy, so that accuracy ranks."""
CHANCE_ABOVE = 2.0
"""Above any accuracy: a base model is refused, and a pruned one falls back on other answers."""


def make_sweep(rows: list[dict[str, Any]]) -> pa.Table:
    return parquet.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=0)


def measure_everything(kind: str, removed_units: list[str]) -> list[dict[str, Any]]:
    """Rows of a sweep with the columns of all metrics, of a tiny model with seven layers."""
    model = tiny.model(depth=7)
    samples = random_samples(1, count=N_SAMPLES, kinds=("choices", "text"))
    units = all_units(7, kind, removed_units)
    rows_of_passes = [
        sweep.sweep_units(model, samples, units, removed_units).rows([CURRENT, *units]),
        weights.sweep_rows(model, samples, units, removed_units, "gradient", 4000),
    ]

    merged_rows: dict[tuple[str, int], dict[str, Any]] = {}
    for rows in rows_of_passes:
        for row in rows:
            merged_rows.setdefault((row["unit"], row["sample"]), {}).update(row)
    return list(merged_rows.values())


@pytest.mark.parametrize(
    ("kind", "score", "removed_units"),
    [
        mark_slow(("layer", "acc", [])),
        ("layer", "acc_norm", ["1"]),
        mark_slow(("mlp", "acc", ["1"])),
    ],
)
def test_a_plan_and_the_relevance_table_rank_alike(
    kind: str, score: str, removed_units: list[str]
) -> None:
    rows = measure_everything(kind, removed_units)
    table = make_sweep(rows)
    answer_column = "correct_norm" if score == "acc_norm" else "correct"
    current_answers = [
        row.get(answer_column, row["correct"]) for row in rows if row["unit"] == CURRENT
    ]
    current_accuracy = sum(current_answers) / N_SAMPLES

    for chance in (CHANCE_BELOW, CHANCE_ABOVE):
        context = Context(chance, score, len(removed_units))
        relevance_rows = score_sweep(table, METRICS, context, seed=3)
        for metric, definition in METRICS.items():
            if definition.pass_ == "generate":
                continue  # no answers are written here
            metric_rows = [row for row in relevance_rows if row["metric"] == metric]
            ranks = {row["unit"]: row["rank"] for row in metric_rows}
            scores = {row["unit"]: row["score"] for row in metric_rows}

            refused, step = read_step(table, metric, context, "c")

            if None in ranks.values():
                assert metric in ("accuracy", "margin")
                assert refused is not None
                assert "calibration 'c'" in refused
            else:
                assert refused is None
                ranked_units = [entry.unit for entry in step.ranked]
                assert ranked_units == sorted(ranks, key=ranks.__getitem__)
                assert dict(step.ranked) == pytest.approx(scores)
                assert step.current_accuracy == pytest.approx(current_accuracy)


def test_a_metric_that_was_not_measured_is_refused() -> None:
    rows = weights.sweep_rows(tiny.model(), [], ["0", "1"], [], "weights", 400)

    with pytest.raises(LaminaError, match="holds no scores of metric 'cosine'"):
        read_step(make_sweep(rows), "cosine", Context(), "c")


def test_a_sweep_of_weights_alone_knows_no_accuracy() -> None:
    rows = weights.sweep_rows(tiny.model(), [], ["0", "1"], [], "weights", 400)

    _, step = read_step(make_sweep(rows), "magnitude", Context(), "c")

    assert step.current_accuracy is None
