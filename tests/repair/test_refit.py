"""Ghost with `refit`: each run is fitted on what the model, pruned and patched so far, really gives it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.engine import sources
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.repair import check, refit
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from tests.given import tiny
from tests.repair import test_published_repairs

RUNS: list[Boundary] = [(0, 1), (2, 4), (5, 6)]
RIDGE = 1e-3
# Of each of two calibrations as many texts as it takes to be padded and to hold some out.
SOURCES = [
    replace(source, sequences=source.sequences[:12]) for source in test_published_repairs.sources()
]

Operators = dict[Boundary, np.ndarray]


def streams(
    model: PreTrainedModel, operators: Operators, held: bool | None = None
) -> list[tuple[float, list[np.ndarray]]]:
    """Weight and h_0 … h_L (T, C) of samples, those held out or not, with operators in place of runs."""

    def instead(operator: np.ndarray | None) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            h = args[0] if args else kwargs["hidden_states"]
            h = h if operator is None else h + h @ torch.tensor(operator, dtype=h.dtype)
            return (h, *output[1:]) if isinstance(output, tuple) else h

        return hook

    layers = layers_of(model)
    handles = [
        layers[at].register_forward_hook(
            instead(operator if at == end - 1 else None), with_kwargs=True
        )
        for (start, end), operator in operators.items()
        for at in range(start, end)
    ]
    found = []
    for source, flags in zip(SOURCES, sources.draw_held_out(SOURCES, 0), strict=True):
        for ids, out in zip(source.sequences, flags, strict=True):
            if held in (None, out):
                h = tiny.stream(model, torch.tensor([ids]), layers)
                found.append((source.weight, [part[0].detach().double().numpy() for part in h]))
    for handle in handles:
        handle.remove()
    return found


def rows(
    model: PreTrainedModel, before: Operators, run: Boundary, held: bool | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Square roots of weights (tokens, 1), X of the patched model and Y of the unpruned one (tokens, C)."""
    patched, plain = streams(model, before, held), streams(model, {}, held)
    root = np.concatenate([np.full((len(h[0]), 1), weight**0.5) for weight, h in plain])
    return (
        root,
        np.concatenate([h[run[0]] for _, h in patched]),
        np.concatenate([h[run[1]] for _, h in plain]),
    )


def dense(model: PreTrainedModel, held: bool | None) -> Operators:
    """Run after run by least squares on stacked rows, the ridge as rows of its own."""
    found: Operators = {}
    for run in RUNS:
        root, x, y = rows(model, found, run, held)
        x, d = root * x, root * (y - x)
        penalty = np.sqrt(RIDGE * np.square(x).sum() / 32) * np.eye(32)
        found[run], *_ = np.linalg.lstsq(
            np.vstack([x, penalty]), np.vstack([d, np.zeros((32, 32))]), rcond=None
        )
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_each_patch_is_the_least_squares_solution_behind_the_patches_before_it(family: str) -> None:
    model = tiny.model(family, depth=6)
    fits, behind = refit.fit(model, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)
    assert list(fits) == RUNS
    expected, honest = dense(model, held=None), dense(model, held=False)
    for number, run in enumerate(RUNS):
        before = {one: expected[one] for one in RUNS[:number]}
        _, x, _ = rows(model, before, run, None)
        ours = x @ fits[run].tensors["operator"].double().numpy()
        assert (
            np.linalg.norm(ours - x @ expected[run]) / np.linalg.norm(x + x @ expected[run]) < 1e-5
        )
        # What is reported comes from a chain no part of which saw the held-out samples.
        root, x, y = rows(model, {one: honest[one] for one in RUNS[:number]}, run, True)
        left = y - x - x @ honest[run]
        norm = np.linalg.norm(root * y)
        assert fits[run].facts["heldout_error"] == pytest.approx(
            np.linalg.norm(root * left) / norm, rel=1e-3
        )
        assert fits[run].facts["heldout_error_before"] == pytest.approx(
            np.linalg.norm(root * (y - x)) / norm, rel=1e-3
        )
        mean = (root**2 * np.abs(left)).sum(0) / (root**2).sum()
        patch = {run: ghost.as_patch(fits[run].validated)}
        checked = check.measure_patches(model, SOURCES, patch, 0, run=behind[run])[run]
        np.testing.assert_allclose(checked["channel_mae_after"], mean, rtol=1e-2)
    # It matters: fitted on the unpruned stream, the last patch is another one.
    ((_, plain),) = ghost.collect(model, SOURCES, RUNS[-1:], Ghost(), 0)
    unmoved = ghost.fit(plain, Ghost(ridge=RIDGE)).tensors["operator"]
    assert float((unmoved - fits[RUNS[-1]].tensors["operator"]).norm()) > 1e-2 * float(
        unmoved.norm()
    )


def test_a_refitted_variant_ends_nearer_on_the_fitted_text() -> None:
    model = tiny.model(depth=6)
    refitted, _ = refit.fit(model, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)
    plain = {
        run: ghost.fit(statistics, Ghost(ridge=RIDGE)).tensors
        for run, statistics in ghost.collect(model, SOURCES, RUNS, Ghost(), 0)
    }
    left = []
    for tensors in (plain, {run: fit.tensors for run, fit in refitted.items()}):
        operators = {run: named["operator"].double().numpy() for run, named in tensors.items()}
        ends = zip(streams(model, operators), streams(model, {}), strict=True)
        left.append(
            sum(weight * np.square(h[-1] - base[-1]).sum() for (weight, h), (_, base) in ends)
        )
    assert left[1] < left[0]
