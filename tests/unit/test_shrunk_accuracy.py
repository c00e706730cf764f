"""Accuracy shrunk to its regression: against whole matrices of a mixed model, and on planted truths."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr

from lamina.config.metrics import METRICS
from lamina.relevance.columns import Context, from_table
from lamina.relevance.metrics import shrunk_accuracy
from lamina.relevance.metrics.accuracy import hits
from lamina.relevance.metrics.expected_accuracy import probabilities
from lamina.relevance.score import ranking, relevance
from tests.unit.test_expected_accuracy import drawn, table

CONTEXT = Context(0.25, "acc")


def layers(seed: int, units: int, samples: int) -> np.ndarray:
    """Scores of choices, the gold one first, which falls by as much as a unit is worth, and by as much more or less."""
    draw, scores = np.random.default_rng(seed), drawn(seed, 0, samples)
    falls = draw.uniform(0, 3, (units, 1)) + draw.normal(size=(units, samples))
    without = np.repeat(scores, units, axis=0)
    without[..., 0] -= falls
    return np.concatenate([scores, without])


def test_predictions_are_those_of_mixed_linear_models() -> None:
    """The same by generalised least squares with whole matrices, and a search for the variance."""
    scores = layers(0, 12, 60)
    columns = from_table(table(scores))
    right, sure = hits(columns, "acc"), probabilities(columns, "acc")
    above = right[0].mean() - 0.25
    y, x = (right[0] - right[1:]).mean(axis=1) / above, (sure[0] - sure[1:]).mean(axis=1)
    # One unit at a time: each sample's part in the share, half a lost and half a won answer, and one correlation.
    parts = [right[0] - row - drop * (right[0] - 0.25) for row, drop in zip(right[1:], y, strict=True)]
    squares = [
        part @ part + ((1 - 0.75 * drop) ** 2 + (1 + 0.25 * drop) ** 2) / 2 for part, drop in zip(parts, y, strict=True)
    ]
    pairs = list(itertools.combinations(range(12), 2))
    alike = np.mean([parts[i] @ parts[j] / (squares[i] * squares[j]) ** 0.5 for i, j in pairs])
    errors = np.sqrt(np.array(squares) / 61.5 / 60) / above
    d = alike * np.outer(errors, errors)
    np.fill_diagonal(d, errors**2)
    design = np.stack([np.ones(12), x], axis=1)

    def left(a: float) -> float:
        inverse = np.linalg.inv(a * np.eye(12) + d)
        information = design.T @ inverse @ design
        beta = np.linalg.solve(information, design.T @ inverse @ y)
        off = y - design @ beta
        return float(off @ inverse @ off - np.linalg.slogdet(inverse)[1] + np.linalg.slogdet(information)[1])

    a = minimize_scalar(left, bounds=(0, 300 * np.diag(d).mean()), method="bounded", options={"xatol": 1e-12}).x
    a = 0.0 if left(0.0) <= left(a) else a
    inverse = np.linalg.inv(a * np.eye(12) + d)
    beta = np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ y)
    wanted = design @ beta + a * inverse @ (y - design @ beta)
    found = ranking(columns, "shrunk_accuracy", CONTEXT).draws[0]
    # The variance is searched for in steps.
    assert found == pytest.approx(wanted, abs=0.02)


def test_few_samples_lean_on_sureness_and_many_on_answers() -> None:
    scores, away = layers(1, 16, 4000), {}
    for count in (40, 4000):
        columns = from_table(table(scores[:, :count]))
        found = {name: ranking(columns, name, CONTEXT).draws[0] for name in ("accuracy", "shrunk_accuracy")}
        away[count] = abs(found["accuracy"] - found["shrunk_accuracy"]).mean()
    assert away[4000] < 0.4 * away[40]


def test_it_ranks_truly_better_than_accuracy_from_few_samples() -> None:
    gains = []
    for seed in range(12):
        scores = layers(seed, 16, 800)
        truth = ranking(from_table(table(scores)), "accuracy", CONTEXT).draws[0]
        few = from_table(table(scores[:, :40]))
        ranks = {
            name: spearmanr(ranking(few, name, CONTEXT).draws[0], truth).statistic
            for name in ("accuracy", "shrunk_accuracy")
        }
        gains.append(ranks["shrunk_accuracy"] - ranks["accuracy"])
    # Of some draws the model is not surely above chance.
    gains = [gain for gain in gains if np.isfinite(gain)]
    assert len(gains) > 8
    assert np.mean(gains) > 2 * np.std(gains) / len(gains) ** 0.5


def test_rows_have_intervals_and_few_units_have_a_reason() -> None:
    rows = relevance(table(layers(2, 6, 50)), ["shrunk_accuracy"], CONTEXT, 0)
    assert len(rows) == 6 and sorted(row["rank"] for row in rows) == list(range(1, 7))
    assert all(row["ci_low"] < row["score"] < row["ci_high"] for row in rows)
    [reason] = {row["reason"] for row in relevance(table(layers(2, 3, 50)), ["shrunk_accuracy"], CONTEXT, 0)}
    assert "3 units are too few" in reason


def test_no_sample_has_a_loss_that_budgets_and_searches_could_use() -> None:
    assert not METRICS["shrunk_accuracy"].losing and METRICS["expected_accuracy"].losing
    assert shrunk_accuracy.REMEDY
