"""Budgets find the unit that a full sweep finds (exact), or one within the tolerance (race), from fewer evaluations."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.data import lm_tasks
from lamina.data.calibrations import Sample, chance_accuracy
from lamina.relevance.score import relevance
from lamina.search import exact, race
from lamina.search.betting import log_evidence
from lamina.sweep import engine
from lamina.sweep.scores import Scores
from lamina.tables import store
from tests.unit import tiny
from tests.unit.test_sweep import random_samples

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "resources/reference"


def options(metric: str = "accuracy", seed: int = 0, tolerance: float = 0.01) -> dict[str, Any]:
    return {"metric": metric, "score": "acc_norm", "seed": seed, "confidence": 0.95, "tolerance": tolerance, "step": 1}


def first_to_go(scores: Scores, metric: str, chance: float, removed: int = 0) -> tuple[str, int]:
    """The unit that goes, and the number of evaluations behind it."""
    rows = scores.rows(scores.units)
    table = store.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=removed)
    ranked = [row for row in relevance(table, chance, "acc_norm", removed, seed=0) if row["metric"] == metric]
    return next(row["unit"] for row in ranked if row["rank"] == 1), len(rows)


@pytest.mark.parametrize("metric", ["accuracy", "perplexity", "output_kl", "output_js", "output_cosine", "output_norm"])
@pytest.mark.parametrize("removed", [(), ("1",), ("3", "4")])
def test_exact_finds_the_unit_of_the_full_sweep(metric: str, removed: tuple[str, ...]) -> None:
    model = tiny.model(depth=8)
    for seed in range(4):
        samples = random_samples(seed, count=90, kinds=("choices", "generated", "text"))
        units = engine.all_units(8, "layer", removed)
        chance = chance_accuracy(samples, tiny.VOCABULARY)
        full = engine.sweep(model, samples, units, removed)
        with engine.opened(model, samples, units, removed, outputs=metric.startswith("output_")) as session:
            exact.run(session, units, options(metric, seed), chance)
        # With units removed, a model that guesses is ranked all the same.
        expected, most = first_to_go(full, metric, chance, 1)
        found, fewer = first_to_go(session.scores, metric, chance, 1)
        assert found == expected
        assert fewer <= most


@pytest.mark.parametrize("tie", [True, False])
def test_exact_keeps_units_that_tie(tie: bool) -> None:
    """Two layers that do nothing tie; the deeper one goes, as in a full sweep."""
    model = tiny.model(depth=6)
    with torch.no_grad():
        for number in (2, 4) if tie else (2,):
            layer = model.model.layers[number]
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    samples = random_samples(3, count=120)
    units = engine.all_units(6, "layer")
    with engine.opened(model, samples, units) as session:
        exact.run(session, units, options("output_kl"), 0.0)
    assert first_to_go(session.scores, "output_kl", 0.0)[0] == ("4" if tie else "2")
    seen = session.scores.seen.sum(axis=1)
    assert seen[1 + 2] == len(samples)
    assert seen[1:].min() < len(samples)


def test_a_session_adds_up_to_one_sweep() -> None:
    """Measured in parts, in any order, with or without the current model's own stream: the numbers stay the same."""
    model, samples, units = tiny.model(), random_samples(5, count=20), engine.all_units(5, "layer")
    whole = engine.sweep(model, samples, units, outputs=False)
    with engine.opened(model, samples, units, outputs=False) as session:
        session.measure(range(10, 20), ["0", "4"])
        session.measure(range(10), units)
        session.measure(range(10, 20), ["1", "3"], current=False)
        partly = session.layer_tokens
        session.measure(range(10, 20), ["2"], current=False)
    assert np.abs(session.scores.loglikelihood - whole.loglikelihood).max() < 1e-5
    np.testing.assert_array_equal(session.scores.seen, whole.seen)
    # The current stream ends behind layer 2: 3 layers of prefix and 2 of the fork, on every token of these lines.
    tokens = (session.layer_tokens - partly) / 5
    assert tokens == int(tokens)


class Replay:
    """A session that gives back what a full sweep measured, so that many seeds can be tried on real numbers."""

    def __init__(self, full: Scores) -> None:
        self.full, self.evaluations = full, 0
        self.scores = Scores(full.units, full.samples)
        self.scores.loglikelihood, self.scores.hits = full.loglikelihood, full.hits
        self.scores.last_hit = full.last_hit

    def measure(self, numbers: np.ndarray, units: list[str], current: bool = True) -> None:
        for unit in [engine.CURRENT, *units] if current else units:
            self.scores.seen[self.scores.index[unit], list(numbers)] = True
        self.evaluations += len(numbers) * len(units)


@cache
def _reference() -> tuple[PreTrainedModel, Any]:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    return model, lm_tasks.recorder(model, AutoTokenizer.from_pretrained(REFERENCE))


@cache
def _swept(task: str, removed: tuple[str, ...], count: int = 300) -> tuple[Scores, list[Sample]]:
    model, recorder = _reference()
    samples = lm_tasks.task_samples(lm_tasks.task_object(task, ROOT, split="train"), recorder, count, 0)
    return engine.sweep(model, samples, engine.all_units(12, "layer", removed), removed, outputs=False), samples


@pytest.mark.parametrize("task", ["microworld_facts", "microworld_addition", "microworld_sorting"])
@pytest.mark.parametrize("removed", [(), ("11",)])
def test_race_is_within_the_tolerance_and_exact_is_exact(task: str, removed: tuple[str, ...]) -> None:
    full, samples = _swept(task, removed)
    chance = chance_accuracy(samples, 512)
    units = full.units[1:]
    key = "correct_norm" if samples[0].kind == "choices" else "correct"
    accuracy = {u: np.mean([full.sample(u, number)[key] for number in range(len(samples))]) for u in units}
    right = 0
    for seed in range(20):
        replay = Replay(full)
        exact.run(replay, units, options(seed=seed), chance)  # type: ignore[arg-type]
        assert first_to_go(replay.scores, "accuracy", chance, len(removed))[0] == max(
            units, key=lambda u: (accuracy[u], int(u))
        )
        assert replay.evaluations < len(units) * len(samples)
        replay = Replay(full)
        race.run(replay, units, options(seed=seed), chance)  # type: ignore[arg-type]
        chosen, _ = first_to_go(replay.scores, "accuracy", chance, len(removed))
        right += accuracy[chosen] >= max(accuracy.values()) - 0.01 - 1e-12
        assert replay.evaluations <= len(units) * len(samples)
    assert right >= 17


def test_evidence_is_rarely_wrong_and_grows_when_it_is_right() -> None:
    generator = np.random.default_rng(0)
    population = np.repeat([-1.0, 0.0, 1.0], [30, 140, 30])
    wrong = 0
    for _ in range(400):
        draws = generator.permutation(population)
        wrong += any(log_evidence(draws[:n], 200, -1, 1, 0.0) > np.log(20) for n in range(5, 201, 5))
    # α = 0.05; 400 trials put a correct test below 0.05 + 3 · 0.011.
    assert wrong / 400 < 0.083
    better = generator.permutation(np.repeat([-1.0, 0.0, 1.0], [10, 90, 100]))
    assert log_evidence(better[:60], 200, -1, 1, 0.0) > np.log(20)


def test_evidence_is_certain_once_the_rest_cannot_undo_it() -> None:
    """With 7 of 10 values seen to be 1, the mean of ten values from 0 to 1 is above 0.6 whatever follows."""
    assert log_evidence(np.ones(7), 10, 0, 1, 0.6) == np.inf
    assert log_evidence(np.ones(6), 10, 0, 1, 0.6) < np.inf
    assert log_evidence(np.r_[np.ones(6), np.zeros(4)], 10, 0, 1, 0.6) < np.log(20)


def test_evidence_stays_below_what_counting_allows() -> None:
    """Against the exact chance, in draws without replacement, of n ones from a population that is half ones."""
    for n in (5, 10, 20):
        chance_of_it = hypergeom.pmf(n, 100, 50, n)
        assert log_evidence(np.ones(n), 100, 0, 1, 0.5) <= -np.log(chance_of_it) + 1e-9
