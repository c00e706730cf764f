"""A ghost patch is the ridge regression of its paper, fitted without the held-out samples and without padding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamina.engine import moments
from lamina.engine.sources import Source, split
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repair import check, patch
from lamina.repair.fit_rows import antisymmetric_share, boundaries, row, shape
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.store import parquet as store
from lamina.study.variant import Variant
from tests.given import tiny

LENGTHS = (5, 9, 14, 7, 11, 3, 12, 8, 10, 6, 13, 9, 4, 12, 15, 8, 7, 11, 10, 9)


def sequences(seed: int = 0) -> list[list[int]]:
    """Token sequences of different lengths, so that every batch is padded."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, tiny.VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]


def collect(
    model: Any, texts: Any, *arguments: Any, **options: Any
) -> dict[tuple[int, int], moments.Statistics[moments.Moments]]:
    return dict(moments.collect(model, [Source(texts)], *arguments, **options))


def streams(model: torch.nn.Module, which: list[list[int]]) -> list[np.ndarray]:
    """h_0 … h_L (tokens, C) over unpadded sequences, one forward each: the plain way."""
    parts = [tiny.stream(model, torch.tensor([ids]), layers_of(model)) for ids in which]
    return [torch.cat([part[place][0] for part in parts]).double().numpy() for place in range(len(parts[0]))]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
def test_streamed_moments_are_those_of_all_real_tokens(family: str) -> None:
    model, texts = tiny.model(family), sequences()
    found = collect(model, texts, [(1, 3), (1, 4), (3, 5)], seed=0, tokens=40, memory=0)
    (held,) = split([Source(texts)], 0)
    for part, flag in (("fit", False), ("heldout", True)):
        h = streams(model, [ids for ids, out in zip(texts, held, strict=True) if out == flag])
        for (start, end), statistics in found.items():
            sums, x, d = getattr(statistics, part), h[start], h[end] - h[start]
            assert sums.tokens == len(x)
            for got, wanted in (
                (sums.xx, x.T @ x),
                (sums.xd, x.T @ d),
                (sums.d, d.sum(0)),
                (sums.x, x.sum(0)),
            ):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
            np.testing.assert_allclose(float(sums.dd), (d**2).sum(), rtol=1e-4)


@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-3, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_the_patch_is_the_least_squares_solution(ridge: float, bias: bool) -> None:
    model, texts = tiny.model(), sequences() + sequences(1)
    statistics = collect(model, texts, [(1, 3)], seed=0)[1, 3]
    fit = ghost.fit(statistics, Ghost(ridge=ridge, bias=bias))
    h = streams(model, texts)
    x, d = h[1], h[3] - h[1]
    shift = (x.mean(0), d.mean(0)) if bias else (np.zeros(32), np.zeros(32))
    centred, target = x - shift[0], d - shift[1]
    penalty = np.sqrt(ridge * np.trace(centred.T @ centred) / 32)
    system = np.vstack([centred, penalty * np.eye(32)])
    expected, *_ = np.linalg.lstsq(system, np.vstack([target, np.zeros((32, 32))]), rcond=None)
    offset = shift[1] - shift[0] @ expected
    wanted = x + x @ expected + offset
    ours = x + x @ fit.tensors["operator"].double().numpy()
    if bias:
        ours = ours + fit.tensors["bias"].double().numpy()
    assert np.linalg.norm(ours - wanted) / np.linalg.norm(wanted) < 1e-5


def test_a_patch_of_several_calibrations_is_the_least_squares_solution_of_their_weighted_rows() -> None:
    model, own, general = tiny.model(), sequences(), sequences(1) + sequences(2)
    sources = [Source(own, 2.0), Source(general, 0.1)]
    ((_, statistics),) = moments.collect(model, sources, [(1, 3)], seed=0)
    for bias in (False, True):
        fit = ghost.fit(statistics, Ghost(ridge=1e-3, bias=bias))
        parts = [(weight, streams(model, texts)) for texts, weight in ((own, 2.0), (general, 0.1))]
        root = np.concatenate([np.full((len(h[1]), 1), weight**0.5) for weight, h in parts])
        x, d = (np.concatenate(part) for part in zip(*[(h[1], h[3] - h[1]) for _, h in parts], strict=True))
        shift = [(root**2 * part).sum(0) / (root**2).sum() * bias for part in (x, d)]
        scaled = root * (x - shift[0])
        penalty = np.sqrt(1e-3 * np.trace(scaled.T @ scaled) / 32)
        target = np.vstack([root * (d - shift[1]), np.zeros((32, 32))])
        expected, *_ = np.linalg.lstsq(np.vstack([scaled, penalty * np.eye(32)]), target, rcond=None)
        offset = shift[1] - shift[0] @ expected
        ours = x @ fit.tensors["operator"].double().numpy()
        if bias:
            ours = ours + fit.tensors["bias"].double().numpy()
        assert np.linalg.norm(ours - x @ expected - offset) / np.linalg.norm(x @ expected + offset) < 1e-5
    assert fit.facts["n_samples"] == 3 * len(LENGTHS) and fit.facts["n_tokens"] == 3 * sum(LENGTHS)


def test_samples_are_held_out_of_every_calibration_and_errors_are_weighted() -> None:
    model, sources = tiny.model(), [Source(sequences(), 1.0), Source(sequences(1)[:10], 0.25)]
    ((_, statistics),) = moments.collect(model, sources, [(1, 4)], seed=3)
    fit = ghost.fit(statistics, Ghost())
    operator = fit.validated["operator"].double().numpy()
    squares, absolute, count = np.zeros(2), np.zeros((2, 32)), 0.0
    for source, flags in zip(sources, split(sources, 3), strict=True):
        assert 0 < sum(flags) < len(flags)
        h = streams(model, [ids for ids, out in zip(source.sequences, flags, strict=True) if out])
        left = h[4] - h[1] - h[1] @ operator
        squares += source.weight * np.array([(left**2).sum(), (h[4] ** 2).sum()])
        absolute += source.weight * np.array([np.abs(h[4] - h[1]).sum(0), np.abs(left).sum(0)])
        count += source.weight * len(left)
    assert fit.facts["heldout_error"] == pytest.approx(np.sqrt(squares[0] / squares[1]), rel=1e-4)
    found = check.measure(model, sources, {(1, 4): ghost.as_patch(fit.validated)}, seed=3)[1, 4]
    np.testing.assert_allclose(found["channel_mae_before"], absolute[0] / count, rtol=1e-4)
    np.testing.assert_allclose(found["channel_mae_after"], absolute[1] / count, rtol=1e-3)
    assert found["n_heldout"] == 6


def test_reported_errors_are_those_of_the_tokens_themselves() -> None:
    model, texts = tiny.model(), sequences()
    (held,) = split([Source(texts)], 7)
    statistics = collect(model, texts, [(1, 4)], seed=7)
    fit = ghost.fit(statistics[1, 4], Ghost(bias=True))
    operator, bias = fit.validated["operator"].double().numpy(), fit.validated["bias"].double().numpy()
    for flag, before, after in (
        (False, fit.facts["fit_error_before"], fit.facts["fit_error"]),
        (True, fit.facts["heldout_error_before"], fit.facts["heldout_error"]),
    ):
        h = streams(model, [ids for ids, out in zip(texts, held, strict=True) if out == flag])
        x, y = h[1], h[4]
        assert before == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(y), rel=1e-4)
        assert after == pytest.approx(np.linalg.norm(y - x - x @ operator - bias) / np.linalg.norm(y), rel=1e-4)
    found = check.measure(model, [Source(texts)], {(1, 4): ghost.as_patch(fit.validated)}, seed=7, tokens=30)[1, 4]
    np.testing.assert_allclose(found["channel_mae_before"], np.abs(y - x).mean(0), rtol=1e-4)
    np.testing.assert_allclose(found["channel_mae_after"], np.abs(y - x - x @ operator - bias).mean(0), rtol=1e-3)


def test_the_ridge_is_picked_on_samples_the_fit_has_not_seen() -> None:
    statistics = collect(tiny.model(), sequences(), [(1, 3)], seed=0)[1, 3]
    chosen = ghost.fit(statistics, Ghost(ridge="validated"))
    by_hand = {ridge: ghost.fit(statistics, Ghost(ridge=ridge)).facts["heldout_error"] for ridge in ghost.GRID}
    assert chosen.facts["ridge"] == min(by_hand, key=lambda ridge: by_hand[ridge])
    assert chosen.facts["heldout_error"] == pytest.approx(min(by_hand.values()))
    assert chosen.facts["ridge_at_edge"] == (chosen.facts["ridge"] in (ghost.GRID[0], ghost.GRID[-1]))
    # Few tokens, many parameters: without a ridge the fit is better on what it saw and worse on what it did not.
    free = ghost.fit(statistics, Ghost(ridge=0))
    assert (
        free.facts["fit_error"] < chosen.facts["fit_error"]
        and free.facts["heldout_error"] > chosen.facts["heldout_error"]
    )


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
        assert not torch.allclose(materialise(model, {"units": ["2"]})(ids).logits, model(ids).logits, atol=1e-2)


def test_a_plan_of_two_runs_gets_two_operators_and_comes_closer_to_the_base_model() -> None:
    model, texts = tiny.model(), sequences() + sequences(1)
    plan = {"units": ["1", "3", "4"], "removed": 3, "selector": "cosine", "kind": "layer"}
    where = boundaries(plan, 5)
    assert where == [(1, 2), (3, 5)]
    statistics = collect(model, texts, where, seed=0)
    patches = {boundary: ghost.as_patch(ghost.fit(statistics[boundary], Ghost()).tensors) for boundary in where}
    ids = tiny.tokens(8, 12, seed=9)
    with torch.no_grad():
        target = model.base_model(ids).last_hidden_state
        distance = [
            float((materialise(model, plan, given).base_model(ids).last_hidden_state - target).norm())
            for given in (None, patches)
        ]
    assert distance[1] < 0.9 * distance[0]


def test_rank_limits_the_operator_and_keeps_the_best_directions() -> None:
    statistics = collect(tiny.model(), sequences(), [(1, 4)], seed=0)[1, 4]
    errors = []
    for rank in (1, 4, 16, 32):
        fit = ghost.fit(statistics, Ghost(ridge=1e-3, rank=rank))
        assert np.linalg.matrix_rank(fit.tensors["operator"].double().numpy(), tol=1e-5) <= rank
        errors.append(fit.facts["fit_error"])
    assert errors == sorted(errors, reverse=True)
    full = ghost.fit(statistics, Ghost(ridge=1e-3))
    assert errors[-1] == pytest.approx(full.facts["fit_error"])
    # Eckart-Young: no projection of the full prediction onto as many directions does better.
    truncated = torch.linalg.svd(full.validated["operator"].double())
    plain = truncated.U[:, :4] @ torch.diag(truncated.S[:4]) @ truncated.Vh[:4]
    assert errors[1] <= statistics.fit.residual_norm(plain) / statistics.fit.output_norm() + 1e-9


def test_a_patch_file_keeps_every_size_and_refuses_one_it_does_not_hold(tmp_path: Path) -> None:
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    named = patch.tensors(1, {(2, 3): {"operator": first}}) | patch.tensors(
        2, {(2, 3): {"operator": first}, (5, 6): {"operator": second, "bias": second[0]}}
    )
    patch.save(tmp_path / "x.safetensors", "ghost", named)
    (alone,) = patch.load(tmp_path / "x.safetensors", 1).values()
    assert alone.method == "ghost" and torch.equal(alone.as_patch().operator, first)
    loaded = {boundary: fitted.as_patch() for boundary, fitted in patch.load(tmp_path / "x.safetensors", 2).items()}
    assert torch.equal(loaded[5, 6].bias, second[0]) and loaded[2, 3].bias is None
    with pytest.raises(LaminaError, match="removed=3"):
        patch.load(tmp_path / "x.safetensors", 3)
    patch.save(tmp_path / "empty.safetensors", "ghost", {})
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["empty.safetensors", "x.safetensors"]


def test_a_row_reports_the_share_that_no_symmetric_patch_reaches() -> None:
    assert antisymmetric_share(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])) == 1.0
    assert antisymmetric_share(torch.eye(3)) == 0.0
    model, texts = tiny.model(), sequences()
    statistics = collect(model, texts, [(1, 2)], seed=0)[1, 2]
    fit = ghost.fit(statistics, Ghost())
    checked = check.measure(model, [Source(texts)], {(1, 2): ghost.as_patch(fit.validated)}, seed=0)[1, 2]
    facts = {**fit.facts, **shape(ghost.as_patch(fit.tensors)), **checked}
    written = row(Variant("m", "c", "s", 1, "ghost"), (1, 2), facts)
    others = {
        "healing",
        "trained_tokens",
        "auto_weight",
        "general_loss_before",
        "general_loss",
        "general_kept",
        "n_general",
        "refused",
    }
    assert set(store.from_rows("patches", [written]).column_names) == {*written, *others}
    assert written["n_tokens"] == sum(LENGTHS) and written["n_samples"] == len(LENGTHS)
    assert written["parameters"] == 32 * 32 and 0 < written["antisymmetric_share"] < 1


def test_a_model_that_gives_nan_is_named() -> None:
    model = tiny.model()
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(LaminaError, match=r"llama gives NaN during the forward pass over the calibration"):
        collect(model, sequences(), [(1, 2)], seed=0)
