"""The residual of a unit: the errors of patches on the other fold, computed with plain arrays."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.repairs.methods.ghost import Ghost
from lamina.selection import looped, residuals
from lamina.store import parquet
from tests.given import tiny
from tests.given.cut_models import random_samples, token_sequences
from tests.given.repairs import linear_layer_model

SAMPLES = random_samples(1, count=24, kinds=("choices", "generated", "text"))
RUNS_BY_UNIT = {
    "0": [(0, 2)],
    "2": [(1, 3)],
    "3": [(1, 2), (3, 4)],
    "4": [(1, 2), (4, 5)],
}
"""The removed runs without layer 1 and each further unit."""


def measure_residuals(
    model: PreTrainedModel, units: list[str], removed_units: list[str]
) -> dict[str, np.ndarray]:
    """The residual of each unit, (samples,)."""
    rows = residuals.sweep_rows(model, SAMPLES, units, removed_units, "fit", 100)
    residuals_by_unit: dict[str, np.ndarray] = {}
    for unit in units:
        unit_rows = [row for row in rows if row["unit"] == unit]
        assert [row["sample"] for row in unit_rows] == [sample.index for sample in SAMPLES]
        residuals_by_unit[unit] = np.array([row["residual"] for row in unit_rows])
    return residuals_by_unit


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_residuals_are_errors_under_the_other_folds_patches_over_the_variance(family: str) -> None:
    model = tiny.model(family)

    measured = measure_residuals(model, list(RUNS_BY_UNIT), ["1"])

    sequences = token_sequences(SAMPLES)
    candidates = [Candidate(frozenset({"1", unit})) for unit in RUNS_BY_UNIT]
    repairs = looped.fit_loop_patches(model, [Source(sequences)], candidates, Ghost(), 0)
    streams_by_sample: list[np.ndarray] = []
    for sequence in sequences:
        streams = tiny.stream(model, torch.tensor([sequence]), layers_of(model))
        streams_by_sample.append(torch.cat(streams).detach().double().numpy())
    for unit, runs in RUNS_BY_UNIT.items():
        expected = np.zeros(len(SAMPLES))
        for start, end in runs:
            targets = np.concatenate([streams[end] for streams in streams_by_sample])
            variance = ((targets - targets.mean(axis=0)) ** 2).sum() / len(SAMPLES)
            for index, streams in enumerate(streams_by_sample):
                patches = repairs.patches[repairs.fold_of_sample[index]]
                operator = patches[start, end].operator.double().numpy()
                predicted = streams[start] + streams[start] @ operator
                expected[index] += ((streams[end] - predicted) ** 2).sum() / variance
        np.testing.assert_allclose(measured[unit], expected, rtol=1e-4)


def test_the_score_is_the_mean_over_samples() -> None:
    rows = residuals.sweep_rows(tiny.model(), SAMPLES, ["0", "2"], [], "fit", 100)
    table = parquet.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=0)

    relevance_rows = score_sweep(table, ["residual"], Context(), seed=0)

    assert {row["unit"] for row in relevance_rows} == {"0", "2"}
    for relevance_row in relevance_rows:
        unit_residuals = [row["residual"] for row in rows if row["unit"] == relevance_row["unit"]]
        assert relevance_row["score"] == pytest.approx(np.mean(unit_residuals))
        assert relevance_row["n_samples"] == len(SAMPLES)
        assert relevance_row["ci_low"] is relevance_row["ci_high"] is None, "too few samples"


def test_a_linear_layer_has_no_residual_however_much_it_does() -> None:
    """Layer 2 is linear."""
    measured = measure_residuals(linear_layer_model(), ["1", "2", "3"], [])

    assert measured["2"].mean() < 1e-6
    assert measured["1"].mean() > 1e-3
    assert measured["3"].mean() > 1e-3
