"""What is told of a fit is the plain computation over tokens: errors, spectrum, and curves over samples and ridges."""

import numpy as np
import pytest
import torch

from lamina.diagnosis import fit as diagnosis
from lamina.diagnosis.fit import Fit
from lamina.engine import moments
from lamina.engine.sources import Source, split
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.repair import check
from lamina.repair.fitting import shape
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.store import parquet as store
from tests.given import tiny
from tests.repair.test_ghost import sequences, streams


def test_fitted_samples_are_checked_beside_the_held_out_ones() -> None:
    model, texts = tiny.model(), sequences()[:2]
    ((_, statistics),) = moments.collect(model, [Source(texts)], [(1, 3)], seed=0)
    patch = ghost.as_patch(ghost.fit(statistics, Ghost(ridge=0.1)).validated)
    found = check.measure(model, [Source(texts)], {(1, 3): patch}, seed=0)[1, 3]
    for name, wanted in (("mae", True), ("fit_mae", False)):
        (text,) = [ids for ids, held in zip(texts, split([Source(texts)], 0)[0], strict=True) if held == wanted]
        h = streams(model, [text])
        left = h[3] - h[1] - h[1] @ patch.operator.double().numpy()
        assert found[f"{name}_before"] == pytest.approx(np.abs(h[3] - h[1]).mean(), rel=1e-4)
        assert found[f"{name}_after"] == pytest.approx(np.abs(left).mean(), rel=1e-3)
    assert found["n_heldout"] == 1 and found["heldout_error_stderr"] is None


def test_the_standard_error_is_that_of_resampled_held_out_samples() -> None:
    model, texts, patch = tiny.model(), sequences() + sequences(1) + sequences(2), Patch(0.1 * torch.eye(32))
    found = check.measure(model, [Source(texts)], {(1, 3): patch}, seed=0, tokens=50)[1, 3]
    held = [ids for ids, flag in zip(texts, split([Source(texts)], 0)[0], strict=True) if flag]
    parts = [streams(model, [ids]) for ids in held]
    draw = np.random.default_rng(1)
    for name, scale in (("heldout_error_before_stderr", 1.0), ("heldout_error_stderr", 1.1)):
        squares = np.array([(((h[3] - scale * h[1]) ** 2).sum(), (h[3] ** 2).sum()) for h in parts])
        chosen = squares[draw.integers(len(held), size=(2000, len(held)))].sum(1)
        assert found[name] == pytest.approx(np.sqrt(chosen[:, 0] / chosen[:, 1]).std(), rel=0.15)


def test_the_shape_of_a_map_is_that_of_its_singular_values() -> None:
    operator = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    found = shape(Patch(operator))
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(operator.numpy())[1], rtol=1e-4)
    equal = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0]))
    assert shape(Patch(equal))["effective_rank"] == pytest.approx(3)
    assert shape(Patch(torch.zeros(3, 3)))["effective_rank"] == 0 and shape(None) == {}


def test_curves_are_the_ridge_regressions_of_nested_samples() -> None:
    model, texts = tiny.model(), sequences() + sequences(1)
    rows = diagnosis.diagnose(model, tiny.samples(texts), Fit(span=2, draws=1), tokens=60)
    store.from_rows("diagnoses", rows, model="m", calibration="c", diagnosis="d", kind="fit")
    found = {(row["layer"], row["measure"], row["n_samples"], row["point"]): row for row in rows}
    assert {key[0] for key in found} == {0, 1, 2, 3} and {key[2] for key in found} == {8, 16, 32}
    groups, sizes = diagnosis._groups(texts, 0)
    halves = [streams(model, [ids for ids, at in zip(texts, groups, strict=True) if at == half]) for half in (0, 1)]
    unseen = [np.concatenate(pair) for pair in zip(*halves, strict=True)]
    for place, size in enumerate(sizes):
        seen = streams(model, [ids for ids, at in zip(texts, groups, strict=True) if 2 <= at <= 2 + place])
        x, d = seen[1], seen[3] - seen[1]
        gram, left = x.T @ x, []
        for ridge in ghost.GRID[9:]:
            operator = np.linalg.solve(gram + ridge * np.trace(gram) / 32 * np.eye(32), x.T @ d)
            for name, h in (("unseen_error", unseen), ("fitted_error", seen)):
                row, norm = found[1, name, size, ridge], np.linalg.norm(h[3])
                error = np.linalg.norm(h[3] - h[1] - h[1] @ operator) / norm
                assert row["value"] == pytest.approx(error, rel=1e-3)
                assert row["control"] == pytest.approx(np.linalg.norm(h[3] - h[1]) / norm, rel=1e-4)
            left.append([((h[3] - h[1] - h[1] @ operator) ** 2).sum() for h in halves])
        first, second = np.array(left).T
        value = np.sqrt(first[second.argmin()] + second[first.argmin()]) / np.linalg.norm(unseen[3])
        best = found[1, "validated_error", size, None]["value"]
        assert best == pytest.approx(value, rel=1e-3)


def test_draws_give_an_interval_and_every_sample_has_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, sizes = diagnosis._groups([[number] for number in range(50)], 3)
    assert sizes == [8, 16, 32, 40] and [groups.count(group) for group in range(6)] == [5, 5, 8, 8, 16, 8]
    model, texts = tiny.model(), sequences()
    rows = diagnosis.diagnose(model, tiny.samples(texts), Fit(span=4, draws=3), tokens=60)
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in rows)
    monkeypatch.setattr(diagnosis, "MEMORY", 0)  # a pass per run
    again = diagnosis.diagnose(model, tiny.samples(texts), Fit(span=4, draws=3), tokens=60)
    assert [row["value"] for row in rows[:9]] == pytest.approx([row["value"] for row in again[:9]], rel=1e-6)


def test_what_cannot_be_fitted_is_explained() -> None:
    with pytest.raises(LaminaError, match="span 6 is longer than the model"):
        diagnosis.diagnose(tiny.model(), tiny.samples(sequences()), Fit(span=6), tokens=60)
    with pytest.raises(LaminaError, match="at least 3 different documents"):
        diagnosis.diagnose(tiny.model(), tiny.samples(sequences()[:2]), Fit(), tokens=60)
