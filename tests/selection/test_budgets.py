"""Budgets find the unit that a full sweep finds (exact), or one within the tolerance (race), from fewer evaluations."""

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import hypergeom
from transformers import PreTrainedModel

from lamina.data.calibrations import chance_accuracy
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate, swept
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.selection import exact, race
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.race import log_evidence
from lamina.store import parquet as store
from tests.engine.test_sweep import random_samples
from tests.given import tiny


def options(seed: int = 0, tolerance: float = 0.01) -> dict[str, Any]:
    return {"seed": seed, "confidence": 0.95, "tolerance": tolerance, "step": 1}


def first_to_go(rows: list[dict[str, Any]], metric: str, chance: float, removed: int = 0) -> str:
    """The unit that goes by the ranking of what was measured."""
    columns = from_table(sweeps(rows, removed))
    ranks = ranking(columns, metric, Context(chance, "acc_norm", removed)).ranks
    assert ranks is not None
    return columns.units[ranks.index(1)]


def sweeps(rows: list[dict[str, Any]], removed: int = 0) -> pa.Table:
    return store.from_rows(
        "sweeps", rows, model="m", calibration="c", selector="s", removed=removed
    )


def evaluator(
    session: Session, metric: str, removed: tuple[str, ...], units: list[str]
) -> Evaluator:
    """An evaluator of single removals, named as a sweep names them."""
    current = Candidate(frozenset(removed))
    named = {candidate: unit for unit, candidate in swept(current, units)[0].items()}
    return Evaluator(session, loss_of(metric, "acc_norm"), [current], named)


@cache
def _random_sweep(seed: int, removed: tuple[str, ...]) -> tuple[PreTrainedModel, Scores]:
    """A model of eight layers, and every layer's removal on samples of all kinds."""
    model, samples = (
        tiny.model(depth=8),
        random_samples(seed, count=90, kinds=("choices", "generated", "text")),
    )
    return model, engine.sweep(model, samples, all_units(8, "layer", removed), removed)


@pytest.mark.parametrize("metric", ["accuracy", "perplexity", "output_kl"])
@pytest.mark.parametrize("removed", [(), ("3", "4")])
def test_exact_finds_the_unit_of_the_full_sweep(metric: str, removed: tuple[str, ...]) -> None:
    for seed in range(2):
        model, full = _random_sweep(seed, removed)
        samples, units = full.samples, full.names[1:]
        chance = chance_accuracy(samples, tiny.VOCABULARY)
        current = Candidate(frozenset(removed))
        candidates = [current.without(unit) for unit in units]
        with engine.opened(model, samples, outputs=metric.startswith("output_")) as session:
            asked = evaluator(session, metric, removed, units)
            chosen = exact.run(asked, candidates, options(seed), chance)
            rows = asked.rows([current, *candidates])
        # With units removed, a model that guesses is ranked all the same.
        expected = first_to_go(full.rows(full.names), metric, chance, 1)
        assert first_to_go(rows, metric, chance, 1) == expected
        assert chosen in (None, current.without(expected))
        assert len(rows) <= full.seen.sum()


class Planted:
    """An evaluator of given answers: `wrong` of shape (units, samples), and of margins before the removal."""

    def __init__(self, wrong: np.ndarray, margins: np.ndarray) -> None:
        self.wrong, self.margins, self.seen = wrong, margins, np.zeros(wrong.shape, dtype=bool)
        self.loss, self.count = loss_of("accuracy", "acc_norm"), wrong.shape[1]

    def losses(self, candidates: list[Candidate], numbers: list[int]) -> np.ndarray:
        asked = np.ix_([int(*candidate.removed) for candidate in candidates], numbers)
        self.seen[asked] = True
        return self.wrong[asked].astype(float)

    def values(self, candidate: Candidate) -> dict[str, np.ndarray]:
        assert candidate == Candidate()
        return {"gold_margin_norm": self.margins[None], "nll": np.zeros((1, self.count))}


def test_planted_near_ties_never_deceive_exact_and_rarely_race() -> None:
    """Of hundreds of made-up sweeps in which several units nearly tie, some of them exactly."""
    units, count, deceived, saved = 8, 150, 0, []
    candidates = [Candidate(frozenset({str(unit)})) for unit in range(units)]
    for seed in range(240):
        draw = np.random.default_rng(seed)
        margins = draw.normal(1, 1, count)
        ease = margins + 2 * draw.normal(0, 0.5, (units, count))
        wrong = np.zeros((units, count), dtype=bool)
        for unit, errors in enumerate([24, 24 + seed % 3, 25, 27, 30, 50, 75, 90]):
            wrong[unit, np.argsort(ease[unit])[:errors]] = True
        planted = Planted(wrong, margins)
        chosen = exact.run(planted, candidates, options(seed), 0.25)  # type: ignore[arg-type]
        assert chosen == (None if seed % 3 == 0 else candidates[0])
        saved.append(units * count / planted.seen.sum())
        if seed < 100:
            winner = race.run(Planted(wrong, margins), candidates, options(seed), 0.25)  # type: ignore[arg-type]
            deceived += wrong[int(*winner.removed)].sum() > 24 + 0.01 * count
    # A race that errs in 5 % errs in at most 5 + 3 · 2.2 of 100.
    assert deceived <= 11
    assert np.mean(saved) > 1.5


def test_an_evaluator_measures_once_what_is_asked_in_parts() -> None:
    """In any order and with anything asked again, the numbers are the sweep's, and a pass runs only what is missing."""
    model, samples, units = tiny.model(), random_samples(5, count=20), all_units(5, "layer")
    whole = engine.sweep(model, samples, units, outputs=False)
    zero, one, two, three, four = (Candidate(frozenset({unit})) for unit in units)
    with engine.opened(model, samples, outputs=False) as session:
        asked = evaluator(session, "perplexity", (), units)
        asked.losses([zero, four], range(10, 20))
        asked.losses([zero, one, two, three, four], range(10))
        asked.losses([one, three, four], range(8, 20))
        partly = session.layer_tokens
        losses = asked.losses([two, zero], range(20))
        last, done = session.layer_tokens - partly, session.layer_tokens
        asked.losses([zero, one, two, three, four], range(20))
        assert session.layer_tokens == done
    order = [session.scores.index[name] for name in whole.names]
    assert np.abs(session.scores.loglikelihood[order] - whole.loglikelihood).max() < 1e-5
    np.testing.assert_array_equal(session.scores.seen[order], whole.seen)
    gold = [start + sample.gold for start, sample in zip(whole.offsets, samples, strict=False)]
    np.testing.assert_allclose(losses[0], -whole.loglikelihood[whole.index["2"], gold], atol=1e-5)
    # The current model is known there, so its stream ends where layer 2 is skipped: layers 0, 1, 3 and 4 of ten lines.
    with engine.opened(model, samples[10:], outputs=False) as session:
        session.measure(range(10), {"alone": Candidate()})
    assert last / 4 == session.layer_tokens / 5


def test_evidence_is_rarely_wrong_and_grows_when_it_is_right() -> None:
    generator = np.random.default_rng(0)
    population = np.repeat([-1.0, 0.0, 1.0], [30, 140, 30])
    wrong = 0
    for _ in range(400):
        draws = generator.permutation(population)
        wrong += any(
            log_evidence(draws[:n], 200, -1, 1, 0.0) > np.log(20) for n in range(5, 201, 5)
        )
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
