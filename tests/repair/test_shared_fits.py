"""Repairs that share a pass are fitted as each is by itself, and a job takes such a fit only if it is its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.config import repairs
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.repair import check, fit_rows, fits, protocol, shared
from lamina.repair.shared import Wanted
from tests.given import tiny
from tests.repair.test_ghost import sequences

RUNS: list[Boundary] = [(1, 2), (1, 3), (3, 5)]
ENTRIES: dict[str, dict[str, Any]] = {
    "ghost": {"method": "ghost"},
    "affine": {"method": "ghost", "bias": True, "ridge": 0.1},
    "low": {"method": "ghost", "rank": 4},
    "scales": {"method": "linearpatch", "form": "diag"},
    "rotated": {"method": "linearpatch"},
    "size": {"method": "prune_comp"},
    "folded": {"method": "replaceme"},
}


def alone(model: Any, sources: list[Source], options: Any) -> dict[Boundary, tuple[dict[str, Any], dict[str, Any]]]:
    """Tensors and facts of a fit of its own."""
    method = protocol.method(options.method)
    made = {at: method.fit(part, options) for at, part in method.collect(model, sources, RUNS, options, 3)}
    maps = {at: method.as_patch(fit.validated) for at, fit in made.items()}
    checked = check.measure(model, sources, maps, 3) if all(maps.values()) else {}
    return {at: (fit.tensors, fit_rows.facts(method, fit, checked.get(at, {}))) for at, fit in made.items()}


@pytest.mark.parametrize("memory", [8 << 30, 1], ids=["one group", "a group for each boundary"])
def test_each_fit_is_that_of_a_pass_of_its_own(memory: int) -> None:
    model = tiny.model()
    sources = [Source(sequences() + sequences(1)), Source(sequences(2), 0.5)]
    options = {name: repairs.Repair.from_options(entry) for name, entry in ENTRIES.items()}
    wanted = {name: Wanted(entry, frozenset(RUNS)) for name, entry in options.items()}
    made = {(name, at): rest for name, at, *rest in shared.fitted(model, sources, wanted, 3, memory)}
    assert made.keys() == {(name, at) for name in ENTRIES for at in RUNS}
    for name, entry in options.items():
        assert entry.one_pass
        for at, (tensors, facts) in alone(model, sources, entry).items():
            fit, columns = made[name, at]
            assert columns.keys() == facts.keys() and fit.tensors.keys() == tensors.keys()
            for key, tensor in tensors.items():
                torch.testing.assert_close(fit.tensors[key], tensor, rtol=1e-3, atol=1e-4)
            for key, value in facts.items():
                assert columns[key] == pytest.approx(value, rel=1e-3, abs=1e-5), (name, at, key)


def test_a_pass_that_repairs_share_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    run = shared.over.run
    monkeypatch.setattr(shared.over, "run", lambda *args: (passes.append(args), run(*args)))
    wanted = {name: Wanted(repairs.Repair.from_options(entry), frozenset(RUNS)) for name, entry in ENTRIES.items()}
    list(shared.fitted(tiny.model(), [Source(sequences())], wanted, 0))
    assert len(passes) == 1


def test_a_repair_that_refuses_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> Any:
        raise LaminaError("not this model")

    monkeypatch.setattr("lamina.repair.methods.prune_comp.writers", refuses)
    wanted = {
        name: Wanted(repairs.Repair.from_options(ENTRIES[name]), frozenset(RUNS))
        for name in ("size", "ghost", "folded")
    }
    wanted["folded"] = Wanted(wanted["folded"].options, frozenset({(0, 2)}))
    made = {(name, at) for name, at, *_ in shared.fitted(tiny.model(), [Source(sequences())], wanted, 0)}
    assert made == {("ghost", at) for at in RUNS}


def test_a_file_gives_the_fits_of_what_was_told_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "fits.safetensors"
    fit = {"operator": torch.eye(3), "bias": torch.ones(3)}
    made = {(1, 2): (fit, {"ridge": 0.1 + 0.2, "n_tokens": 7, "channel_mae_after": [1 / 3]})}
    fits.save(file, {fits.key("one"): made, fits.key("other"): {(1, 12): ({"operator": torch.zeros(3)}, {})}})
    back = fits.load(file, fits.key("one\n"))
    assert back is not None and back.keys() == {(1, 2)} and back[1, 2][1] == made[1, 2][1]
    assert all(torch.equal(back[1, 2][0][name], tensor) for name, tensor in fit.items())
    assert fits.load(file, fits.key("one more")) is None


@pytest.mark.parametrize(
    "entry",
    [
        {"method": "ghost", "refit": True},
        {"method": "replaceme", "objective": "cosine"},
        {"method": "streamline"},
        {"method": "ghost", "data": {"own": 1, "corpus": "auto"}},
    ],
    ids=str,
)
def test_what_needs_more_than_a_pass_shares_none(entry: dict[str, Any]) -> None:
    assert not repairs.Repair.from_options(entry).shares("addition")
