"""Scores of several calibrations decide together: against loops over units, and other sweeps."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.selection import choosing, looped
from lamina.selection.looped import Repairs
from lamina.selection.plans import ScoredUnit, StepEvidence
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.prune import PruneStep, SweepFiles
from lamina_workflow.stages.sweep import SweepUnits
from tests.given import tiny
from tests.given.configurations import RawConfig, minimal_config, write_model_and_data
from tests.given.cut_models import random_samples, token_sequences
from tests.given.scripts import make_wildcards
from tests.selection.examples import ghost_options

Scores = dict[str, float | None]


def evidence_of(scores: Scores, current_accuracy: float | None = None) -> StepEvidence:
    ranked = [ScoredUnit(unit, score) for unit, score in scores.items()]
    return StepEvidence(ranked, current_accuracy=current_accuracy)


@pytest.mark.parametrize("combine", ["mean", "worst"])
def test_the_least_relevant_unit_has_the_least_mean_or_worst_score(combine: str) -> None:
    generator = random.Random(3)
    layers = [str(layer) for layer in range(5)]
    for _ in range(50):
        weights = [1.0, generator.choice([0.5, 1.0, 2.0]), 0.25]
        scores_by_calibration: list[dict[str, float]] = []
        for _ in weights:
            scores = {layer: generator.choice([-0.1, 0.0, 0.2, 0.7]) for layer in layers}
            scores_by_calibration.append(scores)
        steps = [evidence_of(dict(scores), 0.8) for scores in scores_by_calibration]

        combined = choosing.combine_steps(steps, weights, combine)

        expected_scores: dict[str, float] = {}
        for layer in layers:
            layer_scores = np.array([scores[layer] for scores in scores_by_calibration])
            weighted_scores = weights * layer_scores
            if combine == "worst":
                expected_scores[layer] = weighted_scores.max()
            else:
                expected_scores[layer] = weighted_scores.sum() / sum(weights)
        # Of equal scores the deeper layer comes first.
        expected_order = sorted(
            layers, key=lambda layer: (round(expected_scores[layer], 10), -int(layer))
        )
        assert [entry.unit for entry in combined.ranked] == expected_order
        assert dict(combined.ranked) == pytest.approx(expected_scores)
        assert combined.current_accuracy == 0.8


def test_a_calibration_without_scores_does_not_count() -> None:
    scored = evidence_of({"0": 0.3, "1": 0.1, "2": 0.2})
    unscored = evidence_of({"0": None, "1": None, "2": None})

    combined = choosing.combine_steps([scored, unscored], [1, 5], "mean")

    assert combined.ranked == [("1", 0.1), ("2", 0.2), ("0", 0.3)]


def test_a_variants_own_calibration_at_chance_ranks_alone() -> None:
    own_step = evidence_of({"2": None, "0": None, "1": None})
    other_step = evidence_of({"0": 0.3, "1": 0.1, "2": 0.2})

    assert choosing.combine_steps([own_step, other_step], [1, 5], "mean") is own_step


@pytest.mark.parametrize("other_scores", [{"0": 0.5, "1": None, "2": 0.5}, {"0": 0.5, "2": 0.5}])
def test_a_unit_without_a_score_on_one_calibration_goes_last(other_scores: Scores) -> None:
    own_step = evidence_of({"0": 0.3, "1": 0.1, "2": 0.2})

    combined = choosing.combine_steps([own_step, evidence_of(other_scores)], [1, 1], "worst")

    assert combined.ranked == [("2", 0.5), ("0", 0.5), ("1", None)]


@pytest.mark.parametrize("fit_weight", [0.0, 0.5])
def test_an_additional_calibration_is_scored_by_patches_that_did_not_see_it(
    fit_weight: float,
) -> None:
    """If the fit sees other tokens in fold 0 of it, only the scores of fold 1 change."""
    model = tiny.model()
    samples = random_samples(7, count=16)
    sequences = token_sequences(samples)
    own_sequences = token_sequences(random_samples(8, count=12))
    candidates = {unit: Candidate(frozenset({"1", unit})) for unit in ("2", "4")}
    _, fold_of_sample = looped.draw_folds([own_sequences, sequences], 0)
    changed_sequences = [
        change_tokens(sequence) if fold == 0 else sequence
        for fold, sequence in zip(fold_of_sample, sequences, strict=True)
    ]

    loglikelihoods: list[np.ndarray] = []
    for fitted_sequences in (sequences, changed_sequences):
        sources = [Source(own_sequences), Source(fitted_sequences, fit_weight)]
        fitted = looped.fit_loop_patches(
            model, sources, candidates.values(), ghost_options(), 0, scored=1
        )
        assert list(fitted.fold_of_sample) == fold_of_sample
        with sweep.open_session(model, samples, outputs=False) as session:
            fitted.measure(session, range(len(samples)), candidates)
        loglikelihoods.append(session.scores.loglikelihood)

    is_changed = (loglikelihoods[0] != loglikelihoods[1]).any(axis=0)
    fold_of_row = np.repeat(fold_of_sample, [len(sample.rows) for sample in samples])
    assert not is_changed[fold_of_row == 0].any()
    assert is_changed[fold_of_row == 1].all() == bool(fit_weight)


@pytest.mark.parametrize("fit_weight", [0.0, 0.5])
def test_patches_do_not_depend_on_which_calibration_is_scored(fit_weight: float) -> None:
    model = tiny.model()
    own_source = Source(token_sequences(random_samples(8, count=12)))
    other_source = Source(token_sequences(random_samples(7, count=16)), fit_weight)
    fitted_sources = [own_source, other_source] if fit_weight else [own_source]
    candidates = [Candidate(frozenset({"1", "2"}))]

    def fit(sources: list[Source], scored: int) -> Repairs:
        return looped.fit_loop_patches(model, sources, candidates, ghost_options(), 0, scored)

    own_repairs = fit(fitted_sources, scored=0)
    other_repairs = fit([own_source, other_source], scored=1)

    for own_patches, other_patches in zip(own_repairs.patches, other_repairs.patches, strict=True):
        own_operator = own_patches[1, 3].operator
        other_operator = other_patches[1, 3].operator
        assert (own_operator == other_operator).all()


def change_tokens(sequence: tuple[int, ...]) -> tuple[int, ...]:
    """Other tokens, as many."""
    return tuple(4 + token % 7 for token in reversed(sequence))


@pytest.fixture
def raw() -> RawConfig:
    raw = minimal_config()
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"] = {
        "bare": {"metric": "accuracy"},
        "wide": {"metric": "accuracy", "also": {"corpus": 0.5}},
        "looped": {
            "metric": "accuracy",
            "also": {"corpus": 0.5},
            "combine": "worst",
            "repair": "general",
            "seed": 4,
        },
    }
    raw["studies"]["prune"] |= {"selectors": ["wide"], "removed": [2], "repairs": ["none"]}
    return raw


@pytest.fixture
def config(raw: RawConfig, tmp_path: Path) -> Configuration:
    return load_configuration(raw, write_model_and_data(tmp_path))


def wildcards(selector: str, removed: int, calibration: str = "recall", **others: str) -> Wildcards:
    return make_wildcards(
        model="small", calibration=calibration, selector=selector, removed=removed, **others
    )


def prune_step(config: Configuration, selector: str, calibration: str = "recall") -> PruneStep:
    """The job that makes the plan of size 3."""
    return PruneStep.of(config, wildcards(selector, 3, calibration))


def test_a_plan_reads_the_other_calibrations_with_their_weights(config: Configuration) -> None:
    step = prune_step(config, "wide")

    assert step.options()["beside"] == {"corpus": {"weight": 0.5, "score": "acc_norm"}}
    assert step.modules == (
        "lamina.selection.strategies.iterative",
        "lamina.relevance.metrics.answers",
    )


def test_a_plan_on_the_other_calibration_itself_reads_no_other(config: Configuration) -> None:
    assert prune_step(config, "wide", "corpus").beside == {}
    assert prune_step(config, "bare").beside == {}
    assert "beside" not in prune_step(config, "bare").options()


@pytest.mark.parametrize("selector_folder", ["for/recall/wide", "base/removal/layer"])
def test_a_sweep_belongs_to_the_calibration_of_its_folder(
    config: Configuration, selector_folder: str
) -> None:
    corpus_sweep = f"results/sweeps/small/corpus/{selector_folder}/removed=0.parquet"
    files: dict[str, Any] = {
        "sweep": "own_sweep",
        "calibration": "own_samples",
        "beside_samples": {"corpus": "corpus_samples"},
        "beside_sweeps": [corpus_sweep],
    }

    step = prune_step(config, "wide").model_copy(update=files)

    assert step.scored == {
        "recall": SweepFiles("own_samples", "own_sweep", "acc_norm"),
        "corpus": SweepFiles("corpus_samples", corpus_sweep, "acc_norm", 0.5),
    }


def test_a_sweep_of_another_calibration_has_the_repair_of_its_plans(config: Configuration) -> None:
    own_sweep = SweepUnits.of(config, wildcards("looped", 2, block="0"))
    corpus_sweep = SweepUnits.of(config, wildcards("for/recall/looped", 2, "corpus", block="0"))

    assert own_sweep.loop is not None
    assert own_sweep.loop.weights == [("recall", 1.0), ("corpus", 0.1)]
    assert corpus_sweep.loop == own_sweep.loop
    assert corpus_sweep.modules == own_sweep.modules
    assert corpus_sweep.keys == {
        "model": "small",
        "calibration": "corpus",
        "selector": "looped",
        "removed": 2,
    }


def test_a_sweep_of_plans_without_a_repair_has_none(config: Configuration) -> None:
    corpus_sweep = SweepUnits.of(config, wildcards("for/recall/wide", 2, "corpus", block="0"))

    assert corpus_sweep.loop is None
