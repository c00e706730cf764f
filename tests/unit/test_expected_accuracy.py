"""Probabilities of right choices: against scipy, by hand, in the engine, in budgets, and on planted truths."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import spearmanr

from lamina.config.metrics import METRICS
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.metrics import expected_accuracy
from lamina.relevance.score import ranking, relevance
from lamina.relevance.sureness import probability, temperature
from lamina.selection import exact, race
from lamina.selection.evaluator import Evaluator
from lamina.selection.losses import loss_of
from lamina.store import parquet as store
from tests.unit import tiny
from tests.unit.test_sweep import naive, random_samples

KEYS = {"model": "m", "calibration": "c", "selector": "base", "removed": 0}


def table(scores: np.ndarray, lengths: np.ndarray | None = None) -> store.pa.Table:
    """A sweep with these scores, (units + 1, samples, choices), the gold one first."""
    lengths = np.ones(scores.shape[1:], dtype=int) if lengths is None else lengths
    rows = []
    for unit, of_unit in enumerate(scores):
        for sample, each in enumerate(of_unit):
            normalised = each / lengths[sample]
            rows.append(
                {"unit": str(unit - 1) if unit else "none", "sample": sample, "nll": -each[0], "n_tokens": 1}
                | {"correct": bool(each.argmax() == 0), "correct_norm": bool(normalised.argmax() == 0)}
                | {"gold_margin": each[0] - each[1:].max(), "gold_margin_norm": normalised[0] - normalised[1:].max()}
                | {"choice_scores": each.tolist(), "choice_lengths": lengths[sample].tolist()}
            )
    return store.from_rows("sweeps", rows, **KEYS)


def drawn(seed: int, units: int = 6, samples: int = 80, choices: int = 4) -> np.ndarray:
    draw = np.random.default_rng(seed)
    scores = draw.normal(0, 3, (units + 1, samples, choices))
    scores[..., 0] += 2.5
    return scores


@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
def test_the_temperature_is_that_of_the_greatest_likelihood(scale: float) -> None:
    scores = drawn(0)[0] * scale
    found = minimize_scalar(lambda b: -log_softmax(scores * np.exp(b), axis=1)[:, 0].sum(), bounds=(-8, 8))
    assert temperature(scores) == pytest.approx(np.exp(-found.x), rel=1e-3)
    assert probability(scores, 0.7) == pytest.approx(softmax(scores / 0.7, axis=1)[:, 0])


def test_a_perfect_model_is_as_sure_as_can_be_and_a_blind_one_knows_nothing() -> None:
    scores = np.abs(drawn(1)[0])
    scores[:, 0] += 20
    assert probability(scores, temperature(scores)) == pytest.approx(1)
    turned = scores.copy()
    turned[:, 0] = turned.min(axis=1) - 1
    assert probability(turned, temperature(turned)) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("way", ["acc", "acc_norm"])
def test_the_score_is_the_share_of_the_mean_probability_above_chance_that_is_lost(way: str) -> None:
    scores, lengths = drawn(2), np.random.default_rng(3).integers(1, 9, (80, 4))
    rows = relevance(table(scores, lengths), ["expected_accuracy"], Context(0.25, way), 0)
    compared = scores.astype(np.float32).astype(float) / (lengths if way == "acc_norm" else 1)
    best = minimize_scalar(lambda b: -log_softmax(compared[0] * np.exp(b), axis=1)[:, 0].sum(), bounds=(-8, 8))
    sure = softmax(compared * np.exp(best.x), axis=2)[..., 0].mean(axis=1)
    for number, row in enumerate(rows):
        assert row["score"] == pytest.approx((sure[0] - sure[number + 1]) / (sure[0] - 0.25), abs=1e-4)
        assert row["ci_low"] < row["score"] < row["ci_high"]


def test_fewer_choices_and_no_choices() -> None:
    scores = drawn(4, choices=4)
    two = table(scores[:, :40, :2]).to_pylist()
    four = [row | {"sample": row["sample"] + 40} for row in table(scores[:, 40:]).to_pylist()]
    columns = from_table(store.from_rows("sweeps", two + four))
    tau = temperature(columns.values["choice_scores"][0])
    found = expected_accuracy.probabilities(columns, "acc")
    assert found[:, :40] == pytest.approx(softmax(scores[:, :40, :2] / tau, axis=2)[..., 0], abs=1e-4)
    assert found[:, 40:] == pytest.approx(softmax(scores[:, 40:] / tau, axis=2)[..., 0], abs=1e-4)
    none = [row | {"choice_scores": None, "choice_lengths": None} for row in two]
    # A sweep of an earlier version did not measure it, a text has none.
    assert relevance(store.from_rows("sweeps", none), ["expected_accuracy"], Context(0.5), 0) == []
    text = [row | {"correct_norm": None} for row in none]
    row = relevance(store.from_rows("sweeps", text), ["expected_accuracy"], Context(0.5), 0)[0]
    assert row["score"] is None and "40 of 40 samples have no choices" in row["reason"]


@pytest.mark.parametrize("family", ["llama"])
def test_the_engine_keeps_the_scores_of_all_choices_gold_first(family: str) -> None:
    model, samples = tiny.model(family), random_samples(6)
    scores = engine.sweep(model, samples, ["2"], outputs=False)
    for unit, removed in (("none", []), ("2", ["2"])):
        expected = iter(naive(model, samples, removed))
        for row, sample in zip(scores.rows([unit]), samples, strict=True):
            each = [next(expected) for _ in sample.rows]
            if sample.kind != "choices":
                assert "choice_scores" not in row
                continue
            order = [sample.gold, *(n for n in range(len(each)) if n != sample.gold)]
            assert row["choice_scores"] == pytest.approx([each[n] for n in order], abs=1e-4)
            assert row["choice_lengths"] == [sample.rows[n].characters for n in order]


@pytest.mark.parametrize("budget", [exact, race])
def test_budgets_choose_what_a_full_sweep_chooses(budget: object) -> None:
    model, units = tiny.model(depth=5), all_units(5, "layer")
    samples = random_samples(1, count=100, kinds=("choices",))
    whole = store.from_rows("sweeps", engine.sweep(model, samples, units).rows(["none", *units]), **KEYS)
    columns = from_table(whole)
    sure = expected_accuracy.probabilities(columns, "acc_norm").mean(axis=1)
    candidates = {Candidate(frozenset({unit})): unit for unit in units}
    with engine.opened(model, samples) as session:
        loss = loss_of("expected_accuracy", "acc_norm")
        asked = Evaluator(session, loss, [Candidate()], candidates | {Candidate(): "none"})
        told = {"seed": 0, "step": 1, "confidence": 0.95, "tolerance": 0.0, "metric": "expected_accuracy"}
        chosen = budget.run(asked, list(candidates), told, 0.0)  # type: ignore[attr-defined]
        measured = [asked.losses([one], range(100)).mean() for one in candidates]
    assert 1 - np.array(measured) == pytest.approx(sure[1:], abs=1e-5)
    assert chosen is None or candidates[chosen] == units[int(sure[1:].argmax())]


def test_planted_truth_is_ranked_better_than_by_accuracy() -> None:
    """Layers that take something from the gold score; 60 questions, and the truth from 20,000."""
    draw, wins, gains = np.random.default_rng(0), 0, []
    for _ in range(20):
        cost = draw.uniform(0, 0.8, 15)

        def answers(samples: int, cost: np.ndarray = cost) -> np.ndarray:
            base = draw.normal(0, 1.5, (samples, 4))
            base[:, 0] += 2
            moved = base + draw.normal(0, 0.5, (15, samples, 4))
            moved[..., 0] -= cost[:, None]
            return np.concatenate([base[None], moved])

        truth = (answers(20000).argmax(axis=2) == 0).mean(axis=1)[1:]
        columns = from_table(table(answers(60)))
        found = {
            name: spearmanr(ranking(columns, name, Context(0.25, "acc")).draws[0], -truth)[0]
            for name in ("accuracy", "expected_accuracy")
        }
        wins += found["expected_accuracy"] > found["accuracy"]
        gains.append(found["expected_accuracy"] - found["accuracy"])
    assert wins >= 15 and np.nanmean(gains) > 0.05  # at chance by accuracy, there is none


def test_intervals_are_narrower_than_those_of_accuracy_and_hold_the_truth() -> None:
    scores = drawn(7, units=3, samples=4300)
    scores[1:, :, 0] -= np.array([0.3, 0.6, 1.0])[:, None]
    asked = [["accuracy", "expected_accuracy"], Context(0.25, "acc"), 0]
    truth = {row["unit"]: row["score"] for row in relevance(table(scores[:, :4000]), ["expected_accuracy"], *asked[1:])}
    widths: dict[str, float] = {}
    for row in relevance(table(scores[:, 4000:]), *asked):
        widths[row["metric"]] = widths.get(row["metric"], 0) + row["ci_high"] - row["ci_low"]
        if row["metric"] == "expected_accuracy":
            assert row["ci_low"] < truth[row["unit"]] < row["ci_high"]
    assert widths["expected_accuracy"] < 0.95 * widths["accuracy"]
    assert METRICS["expected_accuracy"].bound == 1
