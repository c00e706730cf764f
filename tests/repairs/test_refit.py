"""Ghost with `refit`: each run is fitted on what the model, pruned and patched so far, gives it.

Against least squares on dense streams of a model whose runs are replaced by hooks.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of
from lamina.repairs import check, refit
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from tests.given import tiny
from tests.given.edited_models import hold_path
from tests.repairs.examples import (
    relative_distance,
    ridge_regression,
    streams_of,
    texts_of,
    token_weights,
    weighted_norm,
    weighted_sources,
)

RUNS: list[Boundary] = [(0, 1), (2, 4), (5, 6)]
PLAN = {"units": ["0", "2", "3", "5"]}
RIDGE = 1e-3
# As many texts as it takes to be padded and to hold some out.
SOURCES = [replace(source, sequences=source.sequences[:12]) for source in weighted_sources()]

Operators = dict[Boundary, np.ndarray]


def replace_layer(operator: torch.Tensor | None) -> Any:
    """A hook after a layer, which returns x + x W for what entered it, or x without an operator."""

    def hook(layer: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
        stream = arguments[0] if arguments else keywords["hidden_states"]
        if operator is not None:
            stream = stream + stream @ operator.to(stream.dtype)
        return (stream, *output[1:]) if isinstance(output, tuple) else stream

    return hook


def patched_streams(
    model: PreTrainedModel, operators: Operators, is_heldout: bool | None
) -> np.ndarray:
    """h_0 … h_L of all tokens, (L + 1, tokens, C), with operators in place of runs."""
    texts = texts_of(SOURCES, is_heldout)
    with ExitStack() as hooks:
        for (start, end), operator in operators.items():
            for layer_index in range(int(start), int(end)):
                is_last = layer_index == end - 1
                hook = replace_layer(torch.tensor(operator) if is_last else None)
                layer = layers_of(model)[layer_index]
                hooks.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        return np.concatenate(streams_of(model, texts), axis=1)


def first_operators(operators: Operators, n_runs: int) -> Operators:
    return {run: operators[run] for run in RUNS[:n_runs]}


def fit_operators(model: PreTrainedModel, is_heldout: bool | None) -> Operators:
    """Run after run, from the streams of the patched model to those of the unpruned one."""
    weights = token_weights(texts_of(SOURCES, is_heldout))
    base_streams = patched_streams(model, {}, is_heldout)
    operators: Operators = {}
    for run in RUNS:
        start, end = (int(boundary) for boundary in run)
        x = patched_streams(model, operators, is_heldout)[start]
        d = base_streams[end] - x
        operators[run] = ridge_regression(x, d, RIDGE, weights)
    return operators


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_each_patch_is_the_least_squares_solution_after_the_patches_before_it(
    family: str,
) -> None:
    model = tiny.model(family, depth=6)

    fits, _ = refit.fit(model, PLAN, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)

    assert list(fits) == RUNS
    expected = fit_operators(model, is_heldout=None)
    for n_before, run in enumerate(RUNS):
        operators_before = first_operators(expected, n_before)
        x = patched_streams(model, operators_before, is_heldout=None)[int(run[0])]
        repaired = x + x @ fits[run].tensors["operator"].double().numpy()
        assert relative_distance(repaired, x + x @ expected[run]) < 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_errors_are_of_a_chain_no_patch_of_which_saw_the_held_out_samples(family: str) -> None:
    model = tiny.model(family, depth=6)

    fits, pass_before_run = refit.fit(model, PLAN, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)

    validated = fit_operators(model, is_heldout=False)
    heldout_weights = token_weights(texts_of(SOURCES, is_heldout=True))
    base_streams = patched_streams(model, {}, is_heldout=True)
    for n_before, run in enumerate(RUNS):
        operators_before = first_operators(validated, n_before)
        x = patched_streams(model, operators_before, is_heldout=True)[int(run[0])]
        y = base_streams[int(run[1])]
        error = y - x - x @ validated[run]
        norm = weighted_norm(y, heldout_weights)
        error_before = weighted_norm(y - x, heldout_weights) / norm
        error_after = weighted_norm(error, heldout_weights) / norm
        assert fits[run].facts["heldout_error_before"] == pytest.approx(error_before, rel=1e-3)
        assert fits[run].facts["heldout_error"] == pytest.approx(error_after, rel=1e-3)

        patches = {run: ghost.as_patch(fits[run].validated)}
        measured = check.measure_patches(model, SOURCES, patches, 0, run=pass_before_run[run])[run]
        channel_mae = np.average(np.abs(error), axis=0, weights=heldout_weights[:, 0])
        np.testing.assert_allclose(measured["channel_mae_after"], channel_mae, rtol=1e-2)


@pytest.mark.parametrize(
    ("edit", "path", "position"),
    [("0<>1", [1, 0, 2, 3, 4, 5], 3), ("1x2", [0, 1, 1, 2, 3, 4, 5], 4)],
)
def test_a_patch_is_fitted_on_the_stream_of_layers_that_moved(
    edit: str, path: list[int], position: int
) -> None:
    model = tiny.model(depth=6)
    run: Boundary = (3, 4)

    plan = {"units": [edit, "3"]}
    fits, _ = refit.fit(model, plan, SOURCES, [run], Ghost(ridge=RIDGE, refit=True), 0)

    texts = texts_of(SOURCES)
    x = np.concatenate(streams_of(hold_path(model, path), texts), axis=1)[position]
    y = np.concatenate(streams_of(model, texts), axis=1)[4]
    expected = ridge_regression(x, y - x, RIDGE, token_weights(texts))
    repaired = x + x @ fits[run].tensors["operator"].double().numpy()
    assert relative_distance(repaired, x + x @ expected) < 1e-5


def test_a_refitted_patch_differs_from_one_that_is_fitted_on_the_unpruned_stream() -> None:
    model = tiny.model(depth=6)
    last_run = RUNS[-1]

    fits, _ = refit.fit(model, PLAN, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)

    ((_, statistics),) = ghost.collect(model, SOURCES, [last_run], Ghost(), 0)
    plain_operator = ghost.fit(statistics, Ghost(ridge=RIDGE)).tensors["operator"]
    assert relative_distance(fits[last_run].tensors["operator"], plain_operator) > 1e-2


def test_a_refitted_variant_ends_nearer_to_the_unpruned_model_on_the_fitted_text() -> None:
    model = tiny.model(depth=6)
    refitted_fits, _ = refit.fit(model, PLAN, SOURCES, RUNS, Ghost(ridge=RIDGE, refit=True), 0)
    plain_fits = {
        run: ghost.fit(statistics, Ghost(ridge=RIDGE))
        for run, statistics in ghost.collect(model, SOURCES, RUNS, Ghost(), 0)
    }
    weights = token_weights(texts_of(SOURCES))
    base_end = patched_streams(model, {}, is_heldout=None)[-1]

    def distance_at_end(fits: Any) -> float:
        operators = {run: fit.tensors["operator"].double().numpy() for run, fit in fits.items()}
        end = patched_streams(model, operators, is_heldout=None)[-1]
        return weighted_norm(end - base_end, weights)

    assert distance_at_end(refitted_fits) < distance_at_end(plain_fits)
