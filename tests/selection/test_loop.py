"""Selection with the repair in the loop: against models that were really cut and repaired.

Each candidate is scored repaired, and no sample by a patch that was fitted on it.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import sweep
from lamina.engine.candidates import Candidate, plan_sweep
from lamina.engine.scores import Scores
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.models.units import all_units
from lamina.options.repairs import Repair
from lamina.repairs import protocol
from lamina.repairs.methods import ghost
from lamina.repairs.protocol import Fitted
from lamina.selection import looped
from lamina.selection.looped import Repairs
from tests.given import tiny
from tests.given.cut_models import naive_loglikelihoods, random_samples, token_sequences
from tests.given.slow import slow_except
from tests.selection.examples import RIDGE, ghost_options

DEPTH = 5
KINDS = ("choices", "generated", "text")


def sweep_candidates(
    removed_units: Sequence[str], depth: int = DEPTH, kind: str = "layer"
) -> dict[str, Candidate]:
    """The current model and each further removal, by the names of a sweep."""
    current = Candidate(frozenset(removed_units))
    candidates, _ = plan_sweep(current, all_units(depth, kind, removed_units))
    return candidates


def fit_repairs(
    model: PreTrainedModel, samples: Sequence[Sample], removed_units: Sequence[str]
) -> Repairs:
    """Ghost patches for all candidates of a sweep."""
    sources = [Source(token_sequences(samples))]
    candidates = sweep_candidates(removed_units, len(layers_of(model)))
    return looped.fit_loop_patches(model, sources, candidates.values(), ghost_options(), 0)


def sweep_repaired(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    removed_units: Sequence[str],
    outputs: bool = True,
) -> Scores:
    """The scores of a full sweep with the repair in the loop."""
    units = all_units(len(layers_of(model)), "layer", removed_units)
    candidates, observations = plan_sweep(Candidate(frozenset(removed_units)), units)
    repairs = fit_repairs(model, samples, removed_units)
    with sweep.open_session(model, list(samples), 400, outputs) as session:
        repairs.measure(session, range(len(samples)), candidates, observations)
    return session.scores


def draw_folds(samples: Sequence[Sample]) -> list[int]:
    """The fold of each sample."""
    (fold_of_sample,) = looped.draw_folds([token_sequences(samples)], 0)
    return fold_of_sample


def rows_of_samples(scores: Scores, samples: Sequence[Sample]) -> list[int]:
    """The indices of the samples' rows in arrays of scores."""
    rows: list[int] = []
    for sample in samples:
        rows += range(scores.offsets[sample.index], scores.offsets[sample.index + 1])
    return rows


def solve_patches(
    model: PreTrainedModel, samples: Sequence[Sample], removed_units: Collection[str]
) -> dict[Boundary, Patch]:
    """The patch of every removed run, by a dense ridge regression on all tokens of the samples."""
    streams_by_sample = [
        tiny.stream(model, torch.tensor([sequence]), layers_of(model))
        for sequence in token_sequences(samples)
    ]

    def tokens_at(boundary: int) -> np.ndarray:
        token_streams = [streams[boundary][0] for streams in streams_by_sample]
        return torch.cat(token_streams).detach().double().numpy()

    patches: dict[Boundary, Patch] = {}
    for start, end in removed_runs(removed_units):
        x = tokens_at(start)
        y = tokens_at(end)
        gram = x.T @ x
        ridge = RIDGE * np.trace(gram) / len(gram)
        operator = np.linalg.solve(gram + ridge * np.eye(len(gram)), x.T @ (y - x))
        patches[start, end] = Patch(torch.tensor(operator).float())
    return patches


def removed_runs(removed_units: Collection[str]) -> list[Boundary]:
    """The first layer of each run of removed layers, and the layer after it."""
    removed_layers = {int(unit) for unit in removed_units}
    runs: list[Boundary] = []
    for layer in sorted(removed_layers):
        if layer - 1 in removed_layers:
            continue
        end = layer
        while end in removed_layers:
            end += 1
        runs.append((layer, end))
    return runs


@pytest.mark.parametrize("family", slow_except(["llama"], ["llama", "gpt2"]))
@pytest.mark.parametrize("removed_units", [(), ("1", "2")])
def test_scores_are_those_of_variants_repaired_on_the_other_fold(
    family: str, removed_units: tuple[str, ...]
) -> None:
    model = tiny.model(family)
    samples = random_samples(1, count=16, kinds=KINDS)
    fold_of_sample = draw_folds(samples)

    scores = sweep_repaired(model, samples, removed_units)

    for scored_fold in (0, 1):
        scored_samples: list[Sample] = []
        fitted_samples: list[Sample] = []
        for sample, fold in zip(samples, fold_of_sample, strict=True):
            is_scored = fold == scored_fold
            (scored_samples if is_scored else fitted_samples).append(sample)
        rows = rows_of_samples(scores, scored_samples)
        for unit, candidate in sweep_candidates(removed_units).items():
            variant = model
            if candidate.edits:
                patches = solve_patches(model, fitted_samples, candidate.edits)
                variant = materialise(model, {"units": sorted(candidate.edits)}, patches)
            expected = naive_loglikelihoods(variant, scored_samples)
            measured = scores.loglikelihood[scores.index[unit], rows]
            assert np.abs(measured - expected).max() < 1e-4, (unit, scored_fold)


@pytest.mark.parametrize("unit", ["3", "3.mlp"])
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ghost", "ridge": "validated", "bias": True, "rank": 5},
        {"method": "linearpatch"},
    ],
    ids=lambda settings: settings["method"],
)
def test_every_linear_repair_can_be_in_the_loop(settings: dict[str, Any], unit: str) -> None:
    """Scores are those of variants that the method itself repairs, fitted on the other fold."""
    model = tiny.model()
    samples = random_samples(13, count=14)
    options = Repair.from_options(settings)
    candidate = Candidate(frozenset({"1", unit}))
    sources = [Source(token_sequences(samples))]

    repairs = looped.fit_loop_patches(model, sources, [candidate], options, 0)
    with sweep.open_session(model, samples, outputs=False) as session:
        repairs.measure(session, range(len(samples)), {unit: candidate})

    folds_and_samples = list(zip(repairs.fold_of_sample, samples, strict=True))
    scored_samples = [sample for fold, sample in folds_and_samples if fold == 0]
    fitted_samples = [sample for fold, sample in folds_and_samples if fold == 1]
    method = protocol.load_method(options.method)
    fitted_sources = [Source(token_sequences(fitted_samples))]
    runs = find_runs(["1", unit], DEPTH)
    fits = {
        boundary: Fitted(options.method, method.fit(statistics, options).tensors)
        for boundary, statistics in method.collect(model, fitted_sources, runs, options, 0)
    }
    variant = materialise(model, {"units": ["1", unit]}, fits)
    expected = naive_loglikelihoods(variant, scored_samples)
    rows = rows_of_samples(session.scores, scored_samples)
    assert np.abs(session.scores.loglikelihood[0, rows] - expected).max() < 1e-4


@pytest.mark.parametrize("changed_fold", [0, 1])
def test_no_sample_is_scored_under_a_patch_that_was_fitted_on_it(changed_fold: int) -> None:
    """If the fit sees other tokens in one fold, only the scores of the other fold change."""
    model = tiny.model()
    samples = random_samples(3, count=20)
    candidates = sweep_candidates(["1"])
    sequences = token_sequences(samples)
    fold_of_sample = draw_folds(samples)
    changed_sequences: list[tuple[int, ...]] = []
    for index, (fold, sequence) in enumerate(zip(fold_of_sample, sequences, strict=True)):
        if fold == changed_fold:
            other_tokens = tuple(4 + token % 7 for token in reversed(sequence))
            sequence = other_tokens + (5,) * index
        changed_sequences.append(sequence)
    assert looped.draw_folds([changed_sequences], 0) == [fold_of_sample]

    loglikelihoods: list[np.ndarray] = []
    options = ghost_options(ridge="validated")
    for fitted_sequences in (sequences, changed_sequences):
        sources = [Source(fitted_sequences)]
        repairs = looped.fit_loop_patches(model, sources, candidates.values(), options, 0)
        with sweep.open_session(model, samples, 400, False) as session:
            repairs.measure(session, range(len(samples)), candidates)
        loglikelihoods.append(session.scores.loglikelihood)

    is_changed = (loglikelihoods[0] != loglikelihoods[1]).any(axis=0)
    fold_of_row = np.repeat(fold_of_sample, [len(sample.rows) for sample in samples])
    assert not is_changed[fold_of_row == changed_fold].any()
    assert is_changed[fold_of_row != changed_fold].all()


def test_equal_samples_are_in_one_fold_and_folds_are_halves() -> None:
    documents = token_sequences(random_samples(4, count=30))
    sources = [[*documents, *documents[:7]], [*documents[:4], (9, 9, 9)]]

    own_folds, other_folds = looped.draw_folds(sources, 3)

    assert sum(own_folds[:30]) == 15
    assert own_folds[30:] == own_folds[:7]
    assert other_folds[:4] == own_folds[:4]


def test_the_seed_draws_the_folds() -> None:
    documents = token_sequences(random_samples(4, count=30))

    folds = looped.draw_folds([documents], 3)

    assert folds == looped.draw_folds([documents], 3)
    assert folds != looped.draw_folds([documents], 4)


@pytest.mark.parametrize("removed_units", [(), ("1", "4")])
def test_losses_asked_for_in_any_order_are_those_of_one_sweep(
    removed_units: tuple[str, ...],
) -> None:
    model = tiny.model()
    samples = random_samples(6, count=24, kinds=KINDS)
    candidates = sweep_candidates(removed_units)
    scores = sweep_repaired(model, samples, removed_units, outputs=False)
    repairs = fit_repairs(model, samples, removed_units)

    with sweep.open_session(model, samples, outputs=False) as session:
        shuffled_indices = np.random.default_rng(0).permutation(24)
        for sample_indices in np.split(shuffled_indices, 4):
            repairs.measure(session, sample_indices.tolist(), candidates)

    losses: list[list[float]] = []
    expected_losses: list[list[float]] = []
    for unit in candidates:
        losses.append([session.scores.sample(unit, index)["nll"] for index in range(24)])
        expected_losses.append([scores.sample(unit, index)["nll"] for index in range(24)])
    np.testing.assert_allclose(losses, expected_losses, atol=1e-3)


def count_lines(model: PreTrainedModel) -> list[int]:
    """The lines of every batch that passes the first layer from now on."""
    n_lines: list[int] = []

    def record(module: Any, arguments: Any, keywords: Any) -> None:
        stream = arguments[0] if arguments else keywords["hidden_states"]
        n_lines.append(stream.shape[0])

    layers_of(model)[0].register_forward_pre_hook(record, with_kwargs=True)
    return n_lines


def test_one_base_pass_serves_all_candidates() -> None:
    model = tiny.model()
    samples = random_samples(8, count=20)
    n_lines = count_lines(model)

    repairs = fit_repairs(model, samples, ["2"])

    assert sum(n_lines) == len(samples)
    # Candidates that lack the same run hold the same object, so that their streams stay one.
    candidates = sweep_candidates(["2"])
    without_first = repairs.repair_candidate(candidates["0"], 0)
    without_last = repairs.repair_candidate(candidates["4"], 0)
    assert without_first.patches[2, 3] is without_last.patches[2, 3]


def test_additional_calibrations_are_fitted_by_fold_as_well() -> None:
    """So the mixture stays what its weights say."""
    model = tiny.model()
    own_source = Source(token_sequences(random_samples(8, count=20)))
    other_source = Source(token_sequences(random_samples(12, count=8)), 0.1)
    candidates = [Candidate(frozenset({"2"}))]
    n_lines = count_lines(model)

    mixed = looped.fit_loop_patches(
        model, [own_source, other_source], candidates, ghost_options(), 0
    )

    assert sum(n_lines) == 20 + 8
    own = looped.fit_loop_patches(model, [own_source], candidates, ghost_options(), 0)
    assert not torch.equal(mixed.patches[0][2, 3].operator, own.patches[0][2, 3].operator)


def test_too_few_samples_are_refused() -> None:
    samples = random_samples(10, count=3)
    message = r"`repair` of a selector.*at least 4 different documents.* has 3"

    with pytest.raises(LaminaError, match=message):
        fit_repairs(tiny.model(), samples, [])


def test_a_repair_that_is_no_map_of_the_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghost, "as_patch", lambda tensors: None)
    message = r"'ghost' is not a linear map of the stream.*Give the selector"

    with pytest.raises(LaminaError, match=message):
        fit_repairs(tiny.model(), random_samples(11), [])
