"""A removal that gives no numbers is wrong, and is said to be: never right, never left out, never in the way."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep, weights
from lamina.engine.candidates import Candidate
from lamina.engine.scores import Scores
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.units import all_units
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.store import parquet
from tests.engine.test_sweep import naive, random_samples
from tests.given import tiny

OUTPUTS = ("output_cosine", "output_norm", "output_js", "output_kl", "output_tv", "output_flips")
OUTPUT_METRICS = (
    "output_cosine",
    "output_norm",
    "output_js",
    "output_kl",
    "acceptance",
    "agreement",
)
HOT = 7  # a token that overflows where layer 1 is gone
HOT_SAMPLES = {0, 3, 6, 9}


def fragile() -> PreTrainedModel:
    """A model that is well, but gives NaN without layer 1 where the token HOT is read.

    One channel is positive for that token and negative for all others. Layer 1 makes it negative; layer 2 has a neuron
    that is off where it is negative, and overflows where it is positive.
    """
    model, channel = tiny.model(), 5
    with torch.no_grad():
        model.model.embed_tokens.weight[:, channel] = -1
        model.model.embed_tokens.weight[HOT, channel] = 3
        for number, layer in enumerate(model.model.layers):
            layer.self_attn.o_proj.weight[channel] = 0
            layer.mlp.down_proj.weight[channel] = 0
            if number in (1, 2):
                for projection in (layer.mlp.gate_proj, layer.mlp.up_proj):
                    projection.weight[0] = 0
                    projection.weight[0, channel] = 1 if number == 1 else 1e20
        model.model.layers[1].mlp.down_proj.weight[channel, 0] = -10
    return model


def documents() -> list[Sample]:
    """Questions of two choices with the first one gold, a generated answer and a text; four hold the hot token."""
    samples = []
    for number in range(12):
        context = (10 + number, HOT if number in HOT_SAMPLES else 8, 9)
        kind = {3: "generated", 6: "text"}.get(number, "choices")
        rows = tuple(
            Row(context, (20 + number + choice, 11), 2)
            for choice in range(2 if kind == "choices" else 1)
        )
        samples.append(Sample(number, kind, 0, rows, str(number)))
    return samples


def swept() -> tuple[Scores, list[dict[str, Any]], parquet.pa.Table]:
    scores = sweep.sweep_units(fragile(), documents(), all_units(5, "layer"))
    rows = scores.rows(scores.names)
    return (
        scores,
        rows,
        parquet.from_rows("sweeps", rows, model="m", calibration="c", selector="base", removed=0),
    )


def test_what_is_not_finite_is_wrong_and_infinite_never_null() -> None:
    scores, rows, _ = swept()
    cut = naive(fragile(), documents(), ["1"])
    for row in rows:
        if row["unit"] == "1" and row["sample"] in HOT_SAMPLES:
            start = scores.offsets[row["sample"]]
            assert np.isnan(cut[start]), "removing layer 1 really overflows"
            assert row["correct"] is False and row.get("correct_norm", False) is False
            assert row["nll"] == math.inf and row.get("gold_margin", -math.inf) == -math.inf
            assert [row[name] for name in OUTPUTS] == [math.inf] * 6
        else:
            assert all(math.isfinite(row[name]) for name in ("nll", *OUTPUTS))
        assert row["unit"] == "none" or row["cosine"] is not None


def test_relevance_counts_them_and_ranks_the_unit_last() -> None:
    _, rows, table = swept()
    found = score_sweep(table, METRICS, Context(chance=0.0, score="acc"), seed=0)
    assert {row["n_samples"] for row in found} == {12}
    right = {
        unit: np.mean([row["correct"] for row in rows if row["unit"] == unit])
        for unit in ("none", "1")
    }
    for metric in ("perplexity", *OUTPUT_METRICS):
        by_unit = {row["unit"]: row for row in found if row["metric"] == metric}
        lost = by_unit.pop("1")
        assert lost["score"] is lost["ci_low"] is lost["ci_high"] is None
        assert lost["rank"] == 5 and lost["n_not_finite"] == 4
        assert lost["reason"] == "4 of 12 samples not finite"
        for row in by_unit.values():
            assert row["reason"] is None and row["n_not_finite"] == 0
            if metric == "agreement":  # a proportion; means of twelve samples have no interval
                assert row["ci_low"] <= row["score"] <= row["ci_high"]
            else:
                assert row["ci_low"] is row["ci_high"] is None
    lost = next(row for row in found if row["metric"] == "accuracy" and row["unit"] == "1")
    assert lost["score"] == pytest.approx(1 - right["1"] / right["none"])
    assert lost["n_not_finite"] == 4 and lost["reason"] is None
    unmoved = next(row for row in found if row["metric"] == "cosine" and row["unit"] == "1")
    assert unmoved["n_not_finite"] == 0 and unmoved["score"] > 0


@pytest.mark.parametrize("metric", ["accuracy", "perplexity", "agreement"])
def test_losses_are_never_nan_and_what_is_not_finite_loses_most(metric: str) -> None:
    candidates = [Candidate(frozenset({unit})) for unit in ("0", "1", "2")]
    with sweep.open_session(fragile(), documents()) as session:
        means = (
            Evaluator(session, loss_of(metric, "acc_norm"))
            .measure_losses(candidates, range(12))
            .mean(1)
        )
    assert not np.isnan(means).any()
    assert means[1] == means.max()


def test_a_patch_that_overflows_is_wrong_on_every_sample() -> None:
    model, samples = tiny.model(), random_samples(2, kinds=("choices", "text", "generated"))
    broken = Candidate(frozenset({"2"}), {(2, 3): Patch(torch.full((32, 32), torch.inf))})
    with sweep.open_session(model, samples) as session:
        asked = Evaluator(session, loss_of("accuracy", "acc"))
        assert asked.measure_losses([broken], range(len(samples))).min() == 1
        rows = session.scores.rows([broken])
        assert all(row["nll"] == row["output_kl"] == math.inf for row in rows)


def test_a_gradient_of_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(LaminaError, match="NaN during the gradient pass.*dtype: float32"):
        weights.sweep_rows(fragile(), documents(), ["0", "3"], ["1"], "gradient", 400)
