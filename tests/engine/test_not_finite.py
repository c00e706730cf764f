"""A removal after which logits overflow counts as wrong, and no sample is left out.

Expected values are set by a model that is built to overflow on four of twelve samples.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep, weights
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.units import all_units
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.selection.evaluator import Evaluator
from lamina.store import parquet
from tests.given import tiny
from tests.given.cut_models import naive_loglikelihoods, random_samples

OUTPUT_COLUMNS = (
    "output_cosine",
    "output_norm",
    "output_js",
    "output_kl",
    "output_tv",
    "output_flips",
)
UNBOUNDED_METRICS = ("perplexity", "output_cosine", "output_norm", "output_js", "output_kl")
HOT_TOKEN = 7
"""Overflows where layer 1 is removed."""
HOT_SAMPLES = (0, 3, 6, 9)
N_SAMPLES = 12


@torch.no_grad()
def fragile_model() -> PreTrainedModel:
    """A model that gives NaN without layer 1 where it reads the hot token.

    One channel is positive for that token and negative for all others. Layer 1 makes it negative.
    Layer 2 has a neuron that is off where it is negative, and overflows where it is positive.
    """
    model = tiny.model()
    channel = 5
    model.model.embed_tokens.weight[:, channel] = -1
    model.model.embed_tokens.weight[HOT_TOKEN, channel] = 3
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[channel] = 0
        layer.mlp.down_proj.weight[channel] = 0
    for layer_index, weight in ((1, 1), (2, 1e20)):
        mlp = model.model.layers[layer_index].mlp
        for projection in (mlp.gate_proj, mlp.up_proj):
            projection.weight[0] = 0
            projection.weight[0, channel] = weight
    model.model.layers[1].mlp.down_proj.weight[channel, 0] = -10
    return model


def hot_and_other_samples() -> list[Sample]:
    """Questions with the first of two choices gold, a generated answer and a text."""
    samples: list[Sample] = []
    for index in range(N_SAMPLES):
        token = HOT_TOKEN if index in HOT_SAMPLES else 8
        context = (10 + index, token, 9)
        rows = [Row(context, (20 + index, 11), 2)]
        kind = {3: "generated", 6: "text"}.get(index, "choices")
        if kind == "choices":
            rows.append(Row(context, (21 + index, 11), 2))
        samples.append(Sample(index, kind, 0, tuple(rows), str(index)))
    return samples


@pytest.fixture(scope="module")
def sweep_rows() -> list[dict[str, Any]]:
    scores = sweep.sweep_units(fragile_model(), hot_and_other_samples(), all_units(5, "layer"))
    return scores.rows(scores.names)


@pytest.fixture(scope="module")
def relevance_rows(sweep_rows: list[dict[str, Any]]) -> list[Any]:
    table = parquet.from_rows(
        "sweeps", sweep_rows, model="m", calibration="c", selector="base", removed=0
    )
    return score_sweep(table, METRICS, Context(chance=0.0, score="acc"), seed=0)


def test_the_model_overflows_without_layer_1_on_hot_samples() -> None:
    """Otherwise the tests below would say nothing."""
    samples = [hot_and_other_samples()[index] for index in HOT_SAMPLES]

    assert np.isnan(naive_loglikelihoods(fragile_model(), samples, ["1"])).all()


def test_an_overflow_is_a_wrong_answer_with_infinite_losses_and_distances(
    sweep_rows: list[dict[str, Any]],
) -> None:
    hot_rows = [row for row in sweep_rows if row["unit"] == "1" and row["sample"] in HOT_SAMPLES]

    assert len(hot_rows) == len(HOT_SAMPLES)
    for row in hot_rows:
        assert row["correct"] is False
        assert row["nll"] == math.inf
        for column in OUTPUT_COLUMNS:
            assert row[column] == math.inf
        if "gold_margin" in row:
            assert row["correct_norm"] is False
            assert row["gold_margin"] == -math.inf


def test_all_other_numbers_of_a_sweep_are_finite(sweep_rows: list[dict[str, Any]]) -> None:
    for row in sweep_rows:
        if row["unit"] != "none":
            assert math.isfinite(row["cosine"])
        if row["unit"] != "1" or row["sample"] not in HOT_SAMPLES:
            for column in ("nll", *OUTPUT_COLUMNS):
                assert math.isfinite(row[column])


@pytest.mark.parametrize("metric", [*UNBOUNDED_METRICS, "acceptance", "agreement"])
def test_relevance_ranks_a_unit_whose_removal_overflows_last(
    metric: str, relevance_rows: list[Any]
) -> None:
    row_by_unit = {row["unit"]: row for row in relevance_rows if row["metric"] == metric}

    overflow = row_by_unit.pop("1")
    assert overflow["score"] is overflow["ci_low"] is overflow["ci_high"] is None
    assert overflow["rank"] == 5
    assert overflow["n_samples"] == N_SAMPLES
    assert overflow["n_not_finite"] == 4
    assert overflow["reason"] == "4 of 12 samples not finite"
    for row in row_by_unit.values():
        assert row["n_samples"] == N_SAMPLES
        assert row["n_not_finite"] == 0
        assert row["reason"] is None
        if metric == "agreement":
            assert row["ci_low"] <= row["score"] <= row["ci_high"]
        else:
            # Means of twelve samples have no interval; agreement is a proportion.
            assert row["ci_low"] is row["ci_high"] is None


def test_accuracy_counts_an_overflow_as_a_wrong_answer(
    sweep_rows: list[dict[str, Any]], relevance_rows: list[Any]
) -> None:
    def accuracy(unit: str) -> float:
        return float(np.mean([row["correct"] for row in sweep_rows if row["unit"] == unit]))

    (row,) = [row for row in relevance_rows if row["metric"] == "accuracy" and row["unit"] == "1"]

    assert row["score"] == pytest.approx(1 - accuracy("1") / accuracy("none"))
    assert row["n_samples"] == N_SAMPLES
    assert row["n_not_finite"] == 4
    assert row["reason"] is None


def test_metrics_of_the_stream_are_unmoved_by_an_overflow_after_it(
    relevance_rows: list[Any],
) -> None:
    (row,) = [row for row in relevance_rows if row["metric"] == "cosine" and row["unit"] == "1"]

    assert row["score"] > 0
    assert row["n_not_finite"] == 0


@pytest.mark.parametrize("metric", ["accuracy", "perplexity", "agreement"])
def test_losses_are_never_nan_and_an_overflow_loses_most(metric: str) -> None:
    candidates = [Candidate(frozenset({unit})) for unit in ("0", "1", "2")]
    with sweep.open_session(fragile_model(), hot_and_other_samples()) as session:
        evaluator = Evaluator(session, metric, "acc_norm")

        mean_losses = evaluator.measure_losses(candidates, range(N_SAMPLES)).mean(axis=1)

    assert not np.isnan(mean_losses).any()
    assert mean_losses[1] == mean_losses.max()


def test_a_patch_that_overflows_is_wrong_on_every_sample() -> None:
    model = tiny.model()
    samples = random_samples(2, kinds=("choices", "text", "generated"))
    infinite_patch = Patch(torch.full((32, 32), torch.inf))
    candidate = Candidate(frozenset({"2"}), {(2, 3): infinite_patch})
    with sweep.open_session(model, samples) as session:
        evaluator = Evaluator(session, "accuracy", "acc")

        losses = evaluator.measure_losses([candidate], range(len(samples)))

    assert (losses == 1).all()
    for row in session.scores.rows([candidate]):
        assert row["nll"] == math.inf
        assert row["output_kl"] == math.inf


def test_a_gradient_of_a_loss_that_is_nan_is_refused() -> None:
    with pytest.raises(LaminaError, match="NaN during the gradient pass.*dtype: float32"):
        weights.sweep_rows(
            fragile_model(), hot_and_other_samples(), ["0", "3"], ["1"], "gradient", 400
        )
