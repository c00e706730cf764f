"""A plan is decided on its own metric, read from the sweep: by the rank of the relevance table."""

from pathlib import Path

import pytest

from lamina.engine import sweep as engine
from lamina.engine import weights
from lamina.engine.candidates import CURRENT
from lamina.errors import LaminaError
from lamina.models.units import all_units
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.selection import residuals
from lamina.selection.choosing import read_step
from lamina.store import parquet
from tests.engine.test_sweep import random_samples
from tests.given import tiny

ROOT = Path(__file__).parents[2]


def written(path: Path, rows: list[dict], removed: int = 0) -> Path:
    keys = {"model": "m", "calibration": "c", "selector": "s", "removed": removed}
    parquet.write_table(path, parquet.from_rows("sweeps", rows, **keys))
    return path


@pytest.mark.parametrize(
    ("kind", "score", "removed"),
    [("layer", "acc", []), ("layer", "acc_norm", ["1"]), ("mlp", "acc", ["1"])],
)
def test_a_plan_and_the_relevance_table_rank_alike(
    tmp_path: Path, kind: str, score: str, removed: list[str]
) -> None:
    model, samples = tiny.model(depth=7), random_samples(1, count=40, kinds=("choices", "text"))
    units = all_units(7, kind, removed)
    rows = engine.sweep_units(model, samples, units, removed).rows([CURRENT, *units])
    shares = weights.sweep_rows(model, samples, units, removed, "gradient", 4000)
    extra = {(row["unit"], row["sample"]): row for row in shares}
    for row in (
        residuals.sweep_rows(model, samples, units, removed, "fit", 4000) if kind == "layer" else ()
    ):
        extra[row["unit"], row["sample"]] |= row
    sweep = written(
        tmp_path / "sweep.parquet",
        [extra.get((row["unit"], row["sample"]), {}) | row for row in rows],
    )
    # Chance far below, so that accuracy ranks; and far above, where a base model is refused and a later one falls back.
    for chance in (-5.0, 2.0):
        context = Context(chance, score, len(removed))
        table = score_sweep(parquet.read_table(sweep), METRICS, context, seed=3)
        for metric in METRICS:
            expected = {row["unit"]: row["rank"] for row in table if row["metric"] == metric}
            if not expected:
                assert kind == "mlp" and not METRICS[metric].sublayers
                continue
            refused, step = read_step(sweep, metric, context, "c")
            if None in expected.values():
                assert metric in ("accuracy", "margin") and refused and "calibration 'c'" in refused
                continue
            assert refused is None
            assert [unit for unit, _ in step.ranked] == sorted(expected, key=expected.__getitem__)
            scores = {row["unit"]: row["score"] for row in table if row["metric"] == metric}
            assert dict(step.ranked) == pytest.approx(scores)
            column = "correct_norm" if score == "acc_norm" else "correct"
            right = [row.get(column, row["correct"]) for row in rows[:40]]
            assert step.current_accuracy == pytest.approx(sum(right) / 40)


def test_a_metric_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    rows = weights.sweep_rows(tiny.model(), [], ["0", "1"], [], "weights", 400)
    sweep = written(tmp_path / "sweep.parquet", rows)
    assert read_step(sweep, "magnitude", Context(), "c")[1].current_accuracy is None
    with pytest.raises(LaminaError, match="holds no scores of metric 'cosine'"):
        read_step(sweep, "cosine", Context(), "c")
