"""The residual of a unit is what the best map of its runs leaves unexplained, on samples the map has not seen."""

import numpy as np
import pytest
import torch

from lamina.data.calibrations import Sample
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.repair.methods.ghost import Ghost
from lamina.selection import looped, residuals
from lamina.store import parquet
from tests.engine.test_sweep import random_samples
from tests.given import tiny
from tests.repair.test_ghost import linear_model

SAMPLES = random_samples(1, count=24, kinds=("choices", "generated", "text"))
# Of each unit left when layer 1 is gone.
RUNS = {"0": [(0, 2)], "2": [(1, 3)], "3": [(1, 2), (3, 4)], "4": [(1, 2), (4, 5)]}


def swept(
    model: torch.nn.Module, units: list[str], removed: list[str], samples: list[Sample]
) -> dict[str, np.ndarray]:
    """`residual` of each unit, (samples,)."""
    rows = residuals.sweep_rows(model, samples, units, removed, "fit", 100)
    assert [row["sample"] for row in rows if row["unit"] == units[0]] == [
        sample.index for sample in samples
    ]
    return {
        unit: np.array([row["residual"] for row in rows if row["unit"] == unit]) for unit in units
    }


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_residuals_are_errors_under_the_other_folds_patches_over_the_variance(family: str) -> None:
    model = tiny.model(family)
    found = swept(model, list(RUNS), ["1"], SAMPLES)
    sequences = [sample.sequence() for sample in SAMPLES]
    whole = [Candidate(frozenset({"1", unit})) for unit in RUNS]
    repairs = looped.fit_loop_patches(model, [Source(sequences)], whole, Ghost(), 0)
    h = [
        [
            part[0].detach().double().numpy()
            for part in tiny.stream(model, torch.tensor([ids]), layers_of(model))
        ]
        for ids in sequences
    ]
    for unit, runs in RUNS.items():
        expected = np.zeros(len(h))
        for start, end in runs:
            y = np.concatenate([streams[end] for streams in h])
            variance = ((y - y.mean(0)) ** 2).sum() / len(h)
            for number, streams in enumerate(h):
                operator = (
                    repairs.patches[repairs.fold_of_sample[number]][start, end]
                    .operator.double()
                    .numpy()
                )
                left = streams[end] - streams[start] - streams[start] @ operator
                expected[number] += (left**2).sum() / variance
        np.testing.assert_allclose(found[unit], expected, rtol=1e-4)


def test_the_score_is_the_sum_of_the_shares() -> None:
    rows = residuals.sweep_rows(tiny.model(), SAMPLES, ["0", "2"], [], "fit", 100)
    table = parquet.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=0)
    for row in score_sweep(table, ["residual"], Context(), seed=0):
        mean = np.mean([each["residual"] for each in rows if each["unit"] == row["unit"]])
        assert row["score"] == pytest.approx(mean) and row["n_samples"] == len(SAMPLES)
        assert row["ci_low"] is row["ci_high"] is None, "so few samples have no interval"


def test_a_linear_layer_has_no_residual_however_much_it_does() -> None:
    model = linear_model()
    found = {
        unit: values.mean() for unit, values in swept(model, ["1", "2", "3"], [], SAMPLES).items()
    }
    assert found["2"] < 1e-6 and min(found["1"], found["3"]) > 1e-3
