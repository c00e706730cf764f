"""A ghost patch is the ridge regression of its paper, fitted without the held-out samples and without padding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamina.data import calibrations
from lamina.engine import moments
from lamina.engine.sources import Source, draw_held_out
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repair import check, fitting, patch
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.repair.operators import antisymmetric_share
from lamina.store import parquet
from tests.given import tiny

LENGTHS = (5, 9, 14, 7, 11, 3, 12, 8, 10, 6, 13, 9, 4, 12, 15, 8, 7, 11, 10, 9)


def sequences(seed: int = 0) -> list[list[int]]:
    """Token sequences of different lengths, so that every batch is padded."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(4, tiny.VOCABULARY, (length,), generator=generator).tolist()
        for length in LENGTHS
    ]


def collect(
    model: Any, texts: Any, *arguments: Any, **options: Any
) -> dict[tuple[int, int], moments.Statistics[moments.Moments]]:
    return dict(moments.collect_moments(model, [Source(texts)], *arguments, **options))


def streams(model: torch.nn.Module, which: list[list[int]]) -> list[np.ndarray]:
    """h_0 … h_L (tokens, C) over unpadded sequences, one forward each: the plain way."""
    parts = [tiny.stream(model, torch.tensor([ids]), layers_of(model)) for ids in which]
    return [
        torch.cat([part[place][0] for part in parts]).double().numpy()
        for place in range(len(parts[0]))
    ]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
def test_streamed_moments_are_those_of_all_real_tokens(family: str) -> None:
    model, texts = tiny.model(family), sequences()
    found = collect(model, texts, [(1, 3), (1, 4), (3, 5)], seed=0, token_budget=40, max_bytes=0)
    (held,) = draw_held_out([Source(texts)], 0)
    for part, flag in (("fit", False), ("heldout", True)):
        h = streams(model, [ids for ids, out in zip(texts, held, strict=True) if out == flag])
        for (start, end), statistics in found.items():
            sums, x, d = getattr(statistics, part), h[start], h[end] - h[start]
            assert sums.tokens == len(x)
            pairs = ((sums.xx, x.T @ x), (sums.xd, x.T @ d), (sums.d, d.sum(0)), (sums.x, x.sum(0)))
            for got, wanted in pairs:
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
            np.testing.assert_allclose(float(sums.dd), (d**2).sum(), rtol=1e-4)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 0.1)])
@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-3, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_the_patch_is_the_weighted_least_squares_fit(
    ridge: float, bias: bool, weights: tuple[float, float]
) -> None:
    model, texts = tiny.model(), (sequences(), sequences(1) + sequences(2))
    sources = [Source(part, weight) for part, weight in zip(texts, weights, strict=True)]
    ((_, statistics),) = moments.collect_moments(model, sources, [(1, 3)], seed=0)
    fit = ghost.fit(statistics, Ghost(ridge=ridge, bias=bias))
    parts = [(source.weight, streams(model, source.sequences)) for source in sources]
    root = np.concatenate([np.full((len(h[1]), 1), weight**0.5) for weight, h in parts])
    x, d = (
        np.concatenate(part) for part in zip(*[(h[1], h[3] - h[1]) for _, h in parts], strict=True)
    )
    shift = [(root**2 * part).sum(0) / (root**2).sum() * bias for part in (x, d)]
    scaled = root * (x - shift[0])
    penalty = np.sqrt(ridge * np.trace(scaled.T @ scaled) / 32)
    target = np.vstack([root * (d - shift[1]), np.zeros((32, 32))])
    expected, *_ = np.linalg.lstsq(np.vstack([scaled, penalty * np.eye(32)]), target, rcond=None)
    wanted = x + x @ expected + shift[1] - shift[0] @ expected
    ours = x + x @ fit.tensors["operator"].double().numpy()
    if bias:
        ours = ours + fit.tensors["bias"].double().numpy()
    assert np.linalg.norm(ours - wanted) / np.linalg.norm(wanted) < 1e-5
    assert fit.facts["n_samples"] == 3 * len(LENGTHS) and fit.facts["n_tokens"] == 3 * sum(LENGTHS)


def test_samples_are_held_out_of_every_calibration_and_errors_are_those_of_weighted_tokens() -> (
    None
):
    model, sources = tiny.model(), [Source(sequences(), 1.0), Source(sequences(1)[:10], 0.25)]
    ((_, statistics),) = moments.collect_moments(model, sources, [(1, 4)], seed=3)
    fit = ghost.fit(statistics, Ghost(bias=True))
    operator, bias = (
        fit.validated["operator"].double().numpy(),
        fit.validated["bias"].double().numpy(),
    )
    squares, absolute, count = np.zeros((2, 3)), np.zeros((2, 2, 32)), np.zeros(2)
    for source, flags in zip(sources, draw_held_out(sources, 3), strict=True):
        assert 0 < sum(flags) < len(flags)
        for held in (0, 1):
            h = streams(
                model,
                [ids for ids, out in zip(source.sequences, flags, strict=True) if out == held],
            )
            gone, left = h[4] - h[1], h[4] - h[1] - h[1] @ operator - bias
            squares[held] += source.weight * np.array(
                [(part**2).sum() for part in (gone, left, h[4])]
            )
            absolute[held] += source.weight * np.array(
                [np.abs(part).sum(0) for part in (gone, left)]
            )
            count[held] += source.weight * len(left)
    for name, (before, after, whole) in zip(("fit_error", "heldout_error"), squares, strict=True):
        assert fit.facts[f"{name}_before"] == pytest.approx(np.sqrt(before / whole), rel=1e-4)
        assert fit.facts[name] == pytest.approx(np.sqrt(after / whole), rel=1e-4)
    found = check.measure_patches(
        model, sources, {(1, 4): ghost.as_patch(fit.validated)}, seed=3, token_budget=30
    )[1, 4]
    np.testing.assert_allclose(found["channel_mae_before"], absolute[1, 0] / count[1], rtol=1e-4)
    np.testing.assert_allclose(found["channel_mae_after"], absolute[1, 1] / count[1], rtol=1e-3)
    assert found["n_heldout"] == 6


def test_the_ridge_is_picked_on_samples_the_fit_has_not_seen() -> None:
    statistics = collect(tiny.model(), sequences(), [(1, 3)], seed=0)[1, 3]
    chosen = ghost.fit(statistics, Ghost(ridge="validated"))
    by_hand = {
        ridge: ghost.fit(statistics, Ghost(ridge=ridge)).facts["heldout_error"]
        for ridge in ghost.GRID
    }
    assert chosen.facts["ridge"] == min(by_hand, key=lambda ridge: by_hand[ridge])
    assert chosen.facts["heldout_error"] == pytest.approx(min(by_hand.values()))
    assert chosen.facts["ridge_at_edge"] == (
        chosen.facts["ridge"] in (ghost.GRID[0], ghost.GRID[-1])
    )
    # Few tokens, many parameters: without a ridge the fit is better on what it saw and worse on what it did not.
    free = ghost.fit(statistics, Ghost(ridge=0))
    assert free.facts["fit_error"] < chosen.facts["fit_error"]
    assert free.facts["heldout_error"] > chosen.facts["heldout_error"]


def linear_model() -> torch.nn.Module:
    """A model whose layer 2 adds a linear function of its input."""
    model = tiny.model()
    layer = layers_of(model)[2]
    torch.manual_seed(3)
    layer.add = torch.nn.Linear(32, 32, bias=False)
    layer.forward = lambda hidden_states, **_: hidden_states + layer.add(hidden_states)  # type: ignore[method-assign]
    return model


def test_a_linear_layer_is_replaced_exactly() -> None:
    model, texts = linear_model(), sequences() + sequences(1)
    statistics = collect(model, texts, [(2, 3)], seed=0)[2, 3]
    fit = ghost.fit(statistics, Ghost())
    assert fit.facts["heldout_error"] < 1e-5 < 1e-2 < fit.facts["heldout_error_before"]
    variant = materialise(model, {"units": ["2"]}, {(2, 3): ghost.as_patch(fit.tensors)})
    ids = tiny.tokens(seed=5)
    with torch.no_grad():
        torch.testing.assert_close(variant(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(
            materialise(model, {"units": ["2"]})(ids).logits, model(ids).logits, atol=1e-2
        )


def test_rank_limits_the_operator_and_keeps_the_best_directions() -> None:
    statistics = collect(tiny.model(), sequences(), [(1, 4)], seed=0)[1, 4]
    errors = []
    for rank in (1, 4, 16, 32):
        fit = ghost.fit(statistics, Ghost(ridge=1e-3, rank=rank))
        assert set(fit.tensors) == ({"down", "up"} if 2 * rank < 32 else {"operator"})
        assert (
            np.linalg.matrix_rank(ghost.as_patch(fit.tensors).matrix.double().numpy(), tol=1e-5)
            <= rank
        )
        errors.append(fit.facts["fit_error"])
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(ghost.fit(statistics, Ghost(ridge=1e-3)).facts["fit_error"])


@pytest.mark.parametrize("bias", [False, True])
def test_the_factors_are_the_truncated_svd_of_the_prediction(bias: bool) -> None:
    model, texts = tiny.model(), sequences()
    fit = ghost.fit(
        collect(model, texts, [(1, 4)], seed=0)[1, 4], Ghost(ridge=0, rank=5, bias=bias)
    )
    h = streams(model, texts)
    x, d = (part - bias * part.mean(0) for part in (h[1], h[4] - h[1]))
    left, values, right = np.linalg.svd(
        x @ np.linalg.lstsq(x, d, rcond=None)[0], full_matrices=False
    )
    down, up = (fit.tensors[name].double().numpy() for name in ("down", "up"))
    np.testing.assert_allclose(
        x @ down @ up, left[:, :5] * values[:5] @ right[:5], atol=1e-4 * values[0]
    )
    assert (
        down.shape == (32, 5)
        and up.shape == (5, 32)
        and fit.facts["parameters"] == 2 * 5 * 32 + 32 * bias
    )


def test_a_patch_file_keeps_every_size_and_refuses_one_it_does_not_hold(tmp_path: Path) -> None:
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    named = patch.name_tensors(1, {(2, 3): {"operator": first}}) | patch.name_tensors(
        2, {(2, 3): {"operator": first}, (5, 6): {"operator": second, "bias": second[0]}}
    )
    patch.write_patch(tmp_path / "x.safetensors", "ghost", named)
    (alone,) = patch.read_patch(tmp_path / "x.safetensors", 1).values()
    assert alone.method == "ghost" and torch.equal(alone.as_patch().operator, first)
    loaded = {
        boundary: fitted.as_patch()
        for boundary, fitted in patch.read_patch(tmp_path / "x.safetensors", 2).items()
    }
    assert torch.equal(loaded[5, 6].bias, second[0]) and loaded[2, 3].bias is None
    with pytest.raises(LaminaError, match="removed=3"):
        patch.read_patch(tmp_path / "x.safetensors", 3)
    patch.write_patch(tmp_path / "empty.safetensors", "ghost", {})
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == [
        "empty.safetensors",
        "x.safetensors",
    ]


def test_a_row_reports_the_share_that_no_symmetric_patch_reaches() -> None:
    assert antisymmetric_share(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])) == 1.0
    assert antisymmetric_share(torch.eye(3)) == 0.0
    plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 1, "units": ["1"]}
    request, given = (
        fitting.sort_plans([plan], 5, Ghost()),
        calibrations.build_calibration(tiny.samples(sequences()), tiny.VOCABULARY),
    )
    groups = fitting.fit_plans(tiny.model(), request, {"c": given}, [("c", 1.0)], 0)
    _, [written] = fitting.record_fits(request, groups, "ghost")
    others = {
        "healing",
        "trained_tokens",
        "auto_weight",
        "general_loss_before",
        "general_loss",
        "general_kept",
    }
    others |= {"n_general", "refused"}
    assert set(parquet.from_rows("patches", [written]).column_names) == {*written, *others}
    assert written["n_tokens"] == sum(LENGTHS) and written["n_samples"] == len(LENGTHS)
    assert written["parameters"] == 32 * 32 and 0 < written["antisymmetric_share"] < 1


def test_a_model_that_gives_nan_is_named() -> None:
    model = tiny.model()
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(
        LaminaError, match=r"llama gives NaN during the forward pass over the calibration"
    ):
        collect(model, sequences(), [(1, 2)], seed=0)
