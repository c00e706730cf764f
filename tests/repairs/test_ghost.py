"""A ghost patch is the ridge regression of its paper: against least squares on dense streams.

Held-out samples and padding take no part in a fit.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamina.data.calibrations import build_calibration
from lamina.engine import moments
from lamina.engine.moments import Moments, Statistics
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repairs import check, fitting, patch
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina.repairs.operators import antisymmetric_share, describe_operator, effective_rank
from lamina.store import parquet
from tests.given import tiny
from tests.given.repairs import TEXT_LENGTHS, draw_texts, linear_layer_model
from tests.repairs.examples import (
    relative_distance,
    ridge_regression,
    streams_of,
    texts_of,
    token_weights,
    weighted_norm,
)


def collect_moments(
    model: Any, boundaries: list[Boundary], texts: list[list[int]] | None = None, **options: Any
) -> dict[Boundary, Statistics[Moments]]:
    sources = [Source(texts or draw_texts())]
    return dict(moments.collect_moments(model, sources, boundaries, seed=0, **options))


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
def test_streamed_moments_are_those_of_all_real_tokens(family: str) -> None:
    model = tiny.model(family)

    collected = collect_moments(model, [(1, 3), (1, 4), (3, 5)], token_budget=40, max_bytes=0)

    for is_heldout in (False, True):
        texts = texts_of([Source(draw_texts())], is_heldout)
        streams = np.concatenate(streams_of(model, texts), axis=1)
        for (start, end), statistics in collected.items():
            sums = statistics.heldout if is_heldout else statistics.fit
            x = streams[start]
            d = streams[end] - streams[start]
            assert sums.tokens == len(x)
            assert_almost_equal(sums.xx, x.T @ x)
            assert_almost_equal(sums.xd, x.T @ d)
            assert_almost_equal(sums.x, x.sum(axis=0))
            assert_almost_equal(sums.d, d.sum(axis=0))
            assert_almost_equal(sums.dd, (d**2).sum())


def assert_almost_equal(values: Any, expected: Any) -> None:
    """Up to the rounding of the largest number."""
    largest = np.abs(expected).max()
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4 * largest)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 0.1)])
@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-3, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_the_patch_is_the_weighted_least_squares_fit(
    ridge: float, bias: bool, weights: tuple[float, float]
) -> None:
    model = tiny.model()
    sources = [
        Source(draw_texts(), weights[0]),
        Source(draw_texts(1) + draw_texts(2), weights[1]),
    ]

    ((_, statistics),) = moments.collect_moments(model, sources, [(1, 3)], seed=0)
    fit = ghost.fit(statistics, Ghost(ridge=ridge, bias=bias))

    texts = texts_of(sources)
    streams = np.concatenate(streams_of(model, texts), axis=1)
    weight = token_weights(texts)
    x = streams[1]
    d = streams[3] - streams[1]
    x_mean = np.average(x, axis=0, weights=weight[:, 0]) * bias
    d_mean = np.average(d, axis=0, weights=weight[:, 0]) * bias
    operator = ridge_regression(x - x_mean, d - d_mean, ridge, weight)
    expected = x + (x - x_mean) @ operator + d_mean
    repaired = x + x @ fit.tensors["operator"].double().numpy()
    if bias:
        repaired = repaired + fit.tensors["bias"].double().numpy()
    assert relative_distance(repaired, expected) < 1e-5
    assert fit.facts["n_samples"] == 3 * len(TEXT_LENGTHS)
    assert fit.facts["n_tokens"] == 3 * sum(TEXT_LENGTHS)


def test_reported_errors_are_those_of_weighted_tokens_of_each_split() -> None:
    """Samples of every calibration are held out; they judge a patch that was fitted on the rest."""
    model = tiny.model()
    sources = [Source(draw_texts(), 1.0), Source(draw_texts(1)[:10], 0.25)]
    ((_, statistics),) = moments.collect_moments(model, sources, [(1, 4)], seed=0)

    fit = ghost.fit(statistics, Ghost(bias=True))

    operator = fit.validated["operator"].double().numpy()
    bias = fit.validated["bias"].double().numpy()
    for is_heldout, column in ((False, "fit_error"), (True, "heldout_error")):
        texts = texts_of(sources, is_heldout)
        assert {text.weight for text in texts} == {1.0, 0.25}
        streams = np.concatenate(streams_of(model, texts), axis=1)
        weight = token_weights(texts)
        error_before = streams[4] - streams[1]
        error_after = error_before - streams[1] @ operator - bias
        norm = weighted_norm(streams[4], weight)
        expected_before = weighted_norm(error_before, weight) / norm
        expected_after = weighted_norm(error_after, weight) / norm
        assert fit.facts[f"{column}_before"] == pytest.approx(expected_before, rel=1e-4)
        assert fit.facts[column] == pytest.approx(expected_after, rel=1e-4)


def test_channel_errors_are_means_over_weighted_held_out_tokens() -> None:
    model = tiny.model()
    sources = [Source(draw_texts(), 1.0), Source(draw_texts(1)[:10], 0.25)]
    ((_, statistics),) = moments.collect_moments(model, sources, [(1, 4)], seed=0)
    fit = ghost.fit(statistics, Ghost(bias=True))
    patches = {(1, 4): ghost.as_patch(fit.validated)}

    measured = check.measure_patches(model, sources, patches, seed=0, token_budget=30)[1, 4]

    texts = texts_of(sources, is_heldout=True)
    streams = np.concatenate(streams_of(model, texts), axis=1)
    weight = token_weights(texts)[:, 0]
    error_before = streams[4] - streams[1]
    change = streams[1] @ fit.validated["operator"].double().numpy()
    error_after = error_before - change - fit.validated["bias"].double().numpy()
    mae_before = np.average(np.abs(error_before), axis=0, weights=weight)
    mae_after = np.average(np.abs(error_after), axis=0, weights=weight)
    np.testing.assert_allclose(measured["channel_mae_before"], mae_before, rtol=1e-4)
    np.testing.assert_allclose(measured["channel_mae_after"], mae_after, rtol=1e-3)
    assert measured["n_heldout"] == len(texts)


def test_the_ridge_is_picked_on_samples_the_fit_has_not_seen() -> None:
    statistics = collect_moments(tiny.model(), [(1, 3)])[1, 3]

    facts = ghost.fit(statistics, Ghost(ridge="validated")).facts

    error_by_ridge: dict[float, float] = {}
    for ridge in ghost.GRID:
        error_by_ridge[ridge] = ghost.fit(statistics, Ghost(ridge=ridge)).facts["heldout_error"]
    best_ridge = min(error_by_ridge, key=error_by_ridge.__getitem__)
    is_at_edge = best_ridge in (ghost.GRID[0], ghost.GRID[-1])
    assert facts["ridge"] == best_ridge
    assert facts["heldout_error"] == pytest.approx(error_by_ridge[best_ridge])
    assert facts["ridge_at_edge"] == is_at_edge


def test_without_a_ridge_few_tokens_are_overfitted() -> None:
    statistics = collect_moments(tiny.model(), [(1, 3)])[1, 3]

    validated_facts = ghost.fit(statistics, Ghost(ridge="validated")).facts
    free_facts = ghost.fit(statistics, Ghost(ridge=0)).facts

    assert free_facts["fit_error"] < validated_facts["fit_error"]
    assert free_facts["heldout_error"] > validated_facts["heldout_error"]


@torch.no_grad()
def test_a_linear_layer_is_replaced_exactly() -> None:
    model = linear_layer_model()
    statistics = collect_moments(model, [(2, 3)], draw_texts() + draw_texts(1))[2, 3]

    fit = ghost.fit(statistics, Ghost())

    assert fit.facts["heldout_error"] < 1e-5
    assert fit.facts["heldout_error_before"] > 1e-2
    token_ids = tiny.tokens(seed=5)
    expected = model(token_ids).logits
    bare = materialise(model, {"units": ["2"]})
    repaired = materialise(model, {"units": ["2"]}, {(2, 3): ghost.as_patch(fit.tensors)})
    torch.testing.assert_close(repaired(token_ids).logits, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(bare(token_ids).logits, expected, atol=1e-2)


def test_rank_limits_the_operator_and_a_higher_one_fits_better() -> None:
    statistics = collect_moments(tiny.model(), [(1, 4)])[1, 4]

    fit_errors: list[float] = []
    for rank in (1, 4, 16, 32):
        fit = ghost.fit(statistics, Ghost(ridge=1e-3, rank=rank))
        matrix = ghost.as_patch(fit.tensors).matrix.double().numpy()
        assert np.linalg.matrix_rank(matrix, tol=1e-5) <= rank
        is_factored = 2 * rank < 32
        assert set(fit.tensors) == ({"down", "up"} if is_factored else {"operator"})
        fit_errors.append(fit.facts["fit_error"])

    assert fit_errors == sorted(fit_errors, reverse=True)
    full_rank_fit = ghost.fit(statistics, Ghost(ridge=1e-3))
    assert fit_errors[-1] == pytest.approx(full_rank_fit.facts["fit_error"])


@pytest.mark.parametrize("bias", [False, True])
def test_the_factors_are_the_truncated_svd_of_the_prediction(bias: bool) -> None:
    model = tiny.model()
    statistics = collect_moments(model, [(1, 4)])[1, 4]

    fit = ghost.fit(statistics, Ghost(ridge=0, rank=5, bias=bias))

    streams = np.concatenate(streams_of(model, texts_of([Source(draw_texts())])), axis=1)
    x = streams[1]
    d = streams[4] - streams[1]
    if bias:
        x = x - x.mean(axis=0)
        d = d - d.mean(axis=0)
    predicted = x @ ridge_regression(x, d, ridge=0)
    left, values, right = np.linalg.svd(predicted, full_matrices=False)
    truncated = left[:, :5] * values[:5] @ right[:5]
    down = fit.tensors["down"].double().numpy()
    up = fit.tensors["up"].double().numpy()
    assert down.shape == (32, 5)
    assert up.shape == (5, 32)
    np.testing.assert_allclose(x @ down @ up, truncated, atol=1e-4 * values[0])
    assert fit.facts["parameters"] == 2 * 5 * 32 + 32 * bias


@pytest.fixture
def patch_file(tmp_path: Path) -> Path:
    """Patches of two sizes; the first run is in both."""
    torch.manual_seed(0)
    first = {"operator": torch.randn(4, 4)}
    second = {"operator": torch.randn(4, 4), "bias": torch.ones(4)}
    tensors = patch.name_tensors(1, {(2, 3): first})
    tensors |= patch.name_tensors(2, {(2, 3): first, (5, 6): second})
    file = tmp_path / "x.safetensors"
    patch.write_patch(file, "ghost", tensors)
    return file


def test_a_patch_file_keeps_every_size(patch_file: Path) -> None:
    patches_of_1 = patch.read_patch(patch_file, 1)
    patches_of_2 = patch.read_patch(patch_file, 2)

    assert list(patches_of_1) == [(2, 3)]
    assert list(patches_of_2) == [(2, 3), (5, 6)]
    assert patches_of_1[2, 3].method == "ghost"
    small_patch = patches_of_1[2, 3].as_patch()
    first_patch = patches_of_2[2, 3].as_patch()
    second_patch = patches_of_2[5, 6].as_patch()
    assert torch.equal(small_patch.operator, first_patch.operator)
    assert not torch.equal(first_patch.operator, second_patch.operator)
    assert first_patch.bias is None
    assert torch.equal(second_patch.bias, torch.ones(4))


def test_a_patch_file_refuses_a_size_that_it_does_not_hold(patch_file: Path) -> None:
    with pytest.raises(LaminaError, match="removed=3"):
        patch.read_patch(patch_file, 3)


def test_a_plan_that_removes_nothing_has_nothing_to_repair(tmp_path: Path) -> None:
    moved = {"model": "m", "calibration": "c", "selector": "s", "removed": -1, "units": ["1x2"]}
    traded = {**moved, "removed": 0, "units": ["1x2", "3"]}
    file = tmp_path / "moved.safetensors"

    request = fitting.sort_plans([moved, traded], 5, Ghost())
    tensors = patch.name_tensors(0, {(3, 4): {"operator": torch.eye(4)}})
    patch.write_patch(file, "ghost", tensors, whole_sizes=request.whole_sizes)

    assert request.boundaries == {0: [(3, 4)]}
    assert patch.read_patch(file, -1) == {}
    assert list(patch.read_patch(file, 0)) == [(3, 4)]
    with pytest.raises(LaminaError, match="removed=1"):
        patch.read_patch(file, 1)


def test_a_repair_without_patches_writes_one_file(tmp_path: Path) -> None:
    patch.write_patch(tmp_path / "empty.safetensors", "ghost", {})

    assert [file.name for file in tmp_path.iterdir()] == ["empty.safetensors"]


def test_the_antisymmetric_share_is_what_no_symmetric_patch_reaches() -> None:
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    assert antisymmetric_share(rotation) == 1.0
    assert antisymmetric_share(torch.eye(3)) == 0.0
    assert antisymmetric_share(torch.tensor([[0.0, 2.0], [0.0, 0.0]])) == pytest.approx(0.5)


def test_the_effective_rank_is_the_exponential_of_an_entropy() -> None:
    """Of the shares 0.9 and 0.1 of the squared singular values."""
    shape = describe_operator(Patch(torch.diag(torch.tensor([1.0, 3.0, 0.0]))))

    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert shape["antisymmetric_share"] == 0
    assert shape["singular_values"] == pytest.approx([3, 1, 0])
    assert shape["effective_rank"] == pytest.approx(math.exp(entropy))
    assert effective_rank(torch.ones(4)) == pytest.approx(4)


def test_a_row_of_a_patch_has_the_columns_of_repairs() -> None:
    """All of table `patches` but those of healings, of open weights and of refusals."""
    plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 1, "units": ["1"]}
    request = fitting.sort_plans([plan], 5, Ghost())
    calibration = build_calibration(tiny.samples(draw_texts()), tiny.VOCABULARY)

    groups = fitting.fit_plans(tiny.model(), request, {"c": calibration}, [("c", 1.0)], 0)
    _, [row] = fitting.record_fits(request, groups, "ghost")

    other_columns = {
        "healing",
        "trained_tokens",
        "auto_weight",
        "general_loss_before",
        "general_loss",
        "general_kept",
        "n_general",
        "refused",
    }
    all_columns = parquet.from_rows("patches", [row]).column_names
    assert set(all_columns) == row.keys() | other_columns
    assert row["n_tokens"] == sum(TEXT_LENGTHS)
    assert row["n_samples"] == len(TEXT_LENGTHS)
    assert row["parameters"] == 32 * 32
    assert 0 < row["antisymmetric_share"] < 1


def test_a_model_that_gives_nan_is_named() -> None:
    model = tiny.model()
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    message = "llama gives NaN during the forward pass over the calibration"

    with pytest.raises(LaminaError, match=message):
        collect_moments(model, [(1, 2)])
