"""Every kind of interval on planted truths: how many of the drawn studies hold the truth, which 95 % should.

The share of S studies itself is off by two of its standard errors, √(.95 · .05 / S), in one case of twenty: what is
asked leaves three. Samples are 20 to 600. Known to be short: comparisons of very skewed losses at 20 documents (a
lognormal one with σ = 1) 91 %. Known to be wider: rare answers, whose counts are whole, and Spearman's correlation.
"""

from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy.stats import rankdata, t

from lamina.relevance.columns import (
    Columns,
    Context,
    mean_skewness,
    weighted_ratio,
    weighted_ratio_errors,
)
from lamina.relevance.metrics.answers import Accuracy
from lamina.relevance.metrics.outputs import TokenAgreement
from lamina.relevance.statistics import bootstrap_weights, studentised_interval
from lamina.relevance.true_scores import ranking_reliability, true_correlation, true_variance_ratio
from lamina_workflow.report import paired_tests

pytestmark = pytest.mark.slow
STUDIES = 1000
# Skewed true scores look like normal ones with noise, so the share of noise is underestimated.
LEAST_OF_RELIABILITY = {"normal": 0.9, "exponential": 0.9, "few": 0.9}


def share(low: np.ndarray, high: np.ndarray, truth: float | np.ndarray) -> float:
    return float(((low <= truth + 1e-12) & (truth - 1e-12 <= high)).mean())


def enough(found: float, studies: int, least: float = 0.93, most: float = 0.97) -> bool:
    """Between both, but for what so few studies can tell."""
    return (
        least - 3 * (0.05 * 0.95 / studies) ** 0.5
        <= found
        <= most + 3 * (0.05 * 0.95 / studies) ** 0.5
    )


def drawn_losses(
    kind: str, n: int, n_studies: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Losses of a kind, (studies, n), and their true mean."""
    shape = (n_studies, n)
    lies_there = rng.random(shape) < 0.1
    losses, mean = {
        "normal": (rng.standard_normal(shape), 0.0),
        "exponential": (rng.standard_exponential(shape), 1.0),
        "bounded": (rng.beta(1, 9, shape), 0.1),
        "lognormal": (rng.lognormal(0, 1, shape), np.exp(0.5)),
        "very skewed": (rng.lognormal(0, 1.5, shape), np.exp(1.125)),
        "on a tenth": (np.where(lies_there, rng.standard_exponential(shape), 0.0), 0.1),
    }[kind]
    return losses, float(mean)


def mean_interval(
    values: np.ndarray, per: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of metrics whose scores are means: studies stand in the places of units."""
    weights = bootstrap_weights(values.shape[1], 0)
    return studentised_interval(
        weighted_ratio(weights, values, per),
        weighted_ratio_errors(weights, values, per),
        mean_skewness(values, per),
        np.full(len(values), values.shape[1]),
    )


@pytest.mark.parametrize("n", [50, 100, 200, 600])
@pytest.mark.parametrize(
    "kind", ["normal", "exponential", "bounded", "lognormal", "very skewed", "on a tenth"]
)
def test_mean_of_losses(n: int, kind: str) -> None:
    """Cosine, margin, output_*, acceptance, taylor, residual. Rare losses: wider."""
    values, truth = drawn_losses(kind, n, STUDIES, np.random.default_rng(n))
    low, high = mean_interval(values)
    assert enough(share(low, high, truth), STUDIES, most=0.99)


@pytest.mark.parametrize("n", [50, 100, 600])
def test_loss_per_token(n: int) -> None:
    """Perplexity: samples of 1 to 40 tokens, longer ones with less loss per token."""
    rng = np.random.default_rng(n)
    tokens = rng.integers(1, 41, (STUDIES, n)).astype(float)
    losses = tokens * (1 + 1 / tokens) + rng.normal(0, 1, (STUDIES, n)) * tokens**0.5
    truth = 1 + 1 / 20.5
    low, high = mean_interval(losses, tokens)
    assert enough(share(low, high, truth), STUDIES)


def answered(rng: np.random.Generator, n: int, base: float, lost: float, won: float) -> Columns:
    """As many units as studies, each with a model of its own: one column per study would be another calibration."""
    right = rng.random(n) < base
    without = np.where(
        right, rng.random((STUDIES // 2, n)) >= lost, rng.random((STUDIES // 2, n)) < won
    )
    values = np.vstack([right, without]).astype(float)
    return Columns(
        tuple(map(str, range(STUDIES // 2))),
        {"correct": values, "correct_norm": values},
        np.full(STUDIES // 2 + 1, n),
    )


@pytest.mark.parametrize("n", [20, 100, 600])
@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.03, 0.0), (0.2, 0.1), (0.6, 0.2)])
def test_accuracy_relevance(n: int, lost: float, won: float) -> None:
    """The base model is drawn anew in each of 40 studies of many units. Rare answers: wider."""
    rng, held = np.random.default_rng(n), []
    base, chance = 0.9, 0.25
    truth = 1 - (base * (1 - lost) + (1 - base) * won - chance) / (base - chance)
    for study in range(200):
        columns = answered(rng, n, base, lost, won)
        few = Columns(
            columns.units[:5], {k: v[:6] for k, v in columns.values.items()}, columns.seen[:6]
        )
        low, high = Accuracy().interval(few, Context(chance, "acc", seed=study), few.seen, few.seen)
        held.append(share(low, high, truth))
    assert enough(float(np.mean(held)), 400, most=1.0)


@pytest.mark.parametrize("n", [20, 100, 600])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.1, 0.5, 0.95, 1.0])
def test_share_of_changed_tokens(n: int, p: float) -> None:
    """Over true shares about p, since the coverage of a whole number of answers jumps from one to the next."""
    rng = np.random.default_rng(n)
    truth = np.clip(p * rng.uniform(0.8, 1.2, 4000), 0, 1)
    flips = np.vstack([np.zeros(n), rng.random((4000, n)) < truth[:, None]])
    columns = Columns(tuple(map(str, range(4000))), {"output_flips": flips}, np.full(4001, n))
    low, high = TokenAgreement().counted_interval(columns)
    assert enough(share(low, high, truth), 4000, most=1.0)


def planted(
    rng: np.random.Generator, truth: float, tasks: int, n: int, noise: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """True scores of eight units per task with exactly this correlation, and draws of both metrics' scores.

    The noise is the standard error of a score, whatever n is; half its variance is the two metrics' common one.
    """
    pairs = 8 * tasks
    free = rng.normal(size=(pairs, 2))
    one, other = np.linalg.qr(free - free.mean(axis=0))[0].T * pairs**0.5
    x, y = one, truth * one + (1 - truth**2) ** 0.5 * other
    found = []
    weights = bootstrap_weights(n, int(rng.integers(1 << 30)), 300)
    common = rng.normal(size=(pairs, n))
    for scores, error in ((x, noise[0]), (y, noise[1])):
        samples = scores[:, None] + error * n**0.5 * (
            0.5**0.5 * common + 0.5**0.5 * rng.normal(size=(pairs, n))
        )
        found.append(weights @ samples.T)
    return x, y, found[0], found[1]


@pytest.mark.parametrize("truth", [0.96, 0.65, 0.0, -0.65])
@pytest.mark.parametrize(("n", "noise"), [(20, (0.5, 0.3)), (100, (0.3, 0.3)), (600, (0.6, 0.1))])
def test_correlations_of_true_scores(truth: float, n: int, noise: tuple[float, float]) -> None:
    rng, studies = np.random.default_rng(round(100 * truth) + n + 1000), 100
    held: dict[bool, list[bool]] = {False: [], True: []}
    plain = []
    for _ in range(studies):
        x, y, first, second = planted(rng, truth, 4, n, noise)
        for ranked in held:
            true = np.corrcoef(rankdata(x), rankdata(y))[0, 1] if ranked else truth
            found = true_correlation(first, second, n, ranked)
            assert found is not None and found[1] <= found[0] <= found[2]
            held[ranked].append(found[1] - 1e-9 <= true <= found[2] + 1e-9)
        drawn = [np.corrcoef(a, b)[0, 1] for a, b in zip(first[1:], second[1:], strict=True)]
        low, high = np.percentile(drawn, [2.5, 97.5])
        plain.append(low <= truth <= high)
    assert enough(float(np.mean(held[False])), studies, most=1.0)
    assert enough(float(np.mean(held[True])), studies, 0.92, 1.0)
    if truth == 0.96:
        assert np.mean(plain) < 0.5, "percentiles of drawn correlations hold the noise twice"


@pytest.mark.parametrize("truth", [0.96, 0.65, 0.0])
@pytest.mark.parametrize(("n", "noise"), [(100, (0.1, 0.1)), (100, (0.3, 0.3))])
def test_spearman_of_one_task_of_eight_units(
    truth: float, n: int, noise: tuple[float, float]
) -> None:
    """Each swap of two of so few units is a step of the correlation: wider."""
    rng, held = np.random.default_rng(round(100 * truth) + n), []
    for _ in range(100):
        x, y, first, second = planted(rng, truth, 1, n, noise)
        found = true_correlation(first, second, n, ranked=True)
        assert found is not None
        true = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
        held.append(found[1] - 1e-9 <= true <= found[2] + 1e-9)
    assert enough(float(np.mean(held)), 100, most=1.0)


@pytest.mark.parametrize("units", [8, 24])
@pytest.mark.parametrize("kind", ["normal", "exponential", "few"])
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_reliability_of_a_ranking(units: int, kind: str, noise: float) -> None:
    """True scores are normal, skewed, or alike but for two. The truth is the mean agreement of rankings from others."""
    rng, held, n = np.random.default_rng(units), [], 60
    for study in range(100):
        draw = {"normal": rng.normal, "exponential": rng.exponential}
        far = np.where(np.arange(units) < 2, 2.5, 0.0)
        truth = far + 0.3 * rng.normal(size=units) if kind == "few" else draw[kind](size=units)
        truth = (truth - truth.mean()) / truth.std(ddof=1)
        samples = truth[:, None] + noise * n**0.5 * rng.normal(size=(units, n))
        found = ranking_reliability(bootstrap_weights(n, study, 200) @ samples.T, n)
        one, other = (
            rankdata(truth + noise * rng.normal(size=(100, units)), axis=1) for _ in range(2)
        )
        true = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)])
        held.append(found is not None and found[1] <= true <= found[2])
    assert enough(float(np.mean(held)), 100, LEAST_OF_RELIABILITY[kind], 1.0)


def test_variance_ratio() -> None:
    rng, held, n = np.random.default_rng(0), [], 60
    for _ in range(150):
        scores, truths = [], []
        for spread, error in ((0.6, 0.4), (1.0, 0.1)):
            true = rng.normal(size=8) + spread * rng.normal(size=(5, 8))
            truths.append(true.var(axis=0).mean() / true.var())
            samples = true[..., None] + error * n**0.5 * rng.normal(size=(5, 8, n))
            weights = bootstrap_weights(n, int(rng.integers(1 << 30)), 300)
            scores.append(np.einsum("dn,tun->tdu", weights, samples))
        found, *_ = true_variance_ratio(scores[0], scores[1], n)
        assert found is not None and found[1] <= found[0] <= found[2]
        held.append(found[1] <= truths[0] / truths[1] <= found[2])
    assert enough(float(np.mean(held)), 150, most=0.98)


def test_over_draws_of_a_calibration() -> None:
    """View `relevance_means`: Student's t, as its macro has it."""
    views = (Path(__file__).parents[2] / "sql/views.sql").read_text(encoding="utf-8")
    start = views.index("CREATE OR REPLACE MACRO t95")
    with duckdb.connect() as connection:
        connection.execute(views[start : views.index(";", start)])
        for draws in (2, 3, 10, 30):
            (times,) = connection.execute(f"SELECT t95({draws})").fetchone() or ()
            assert times == pytest.approx(t.ppf(0.975, draws - 1), rel=2e-3)


@pytest.mark.parametrize("n", [20, 100, 600])
@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.02, 0.02), (0.2, 0.1)])
def test_paired_difference_of_answers(n: int, lost: float, won: float) -> None:
    """Comparisons of selectors, and of runs document by document; few that differ: wider."""
    rng, held = np.random.default_rng(n), []
    for _ in range(1000):
        luck = rng.random(n)
        found = paired_tests.compute_paired_test(
            [np.where(luck < won, 1.0, np.where(luck > 1 - lost, -1.0, 0.0))]
        )
        held.append(found["ci_low"] <= won - lost <= found["ci_high"])
    assert enough(float(np.mean(held)), 1000, 0.92, 1.0)


@pytest.mark.parametrize("n", [20, 50, 300])
@pytest.mark.parametrize("kind", ["normal", "exponential", "lognormal", "rare"])
def test_paired_difference_of_losses(n: int, kind: str) -> None:
    """Skewed nats per token, and such that differ on few documents, which 20 hardly show."""
    rng = np.random.default_rng(n)
    values, truth = {
        "normal": (rng.normal(size=(STUDIES, n)), 0.0),
        "exponential": (rng.exponential(size=(STUDIES, n)), 1.0),
        "lognormal": (rng.lognormal(size=(STUDIES, n)), np.exp(0.5)),
        "rare": (
            np.where(
                rng.random((STUDIES, n)) < 0.15,
                rng.lognormal(size=(STUDIES, n)),
                0.05 * rng.normal(size=n),
            ),
            0.15 * np.exp(0.5),
        ),
    }[kind]
    if kind == "rare":
        values = np.where(values > 0.2, values, rng.normal(0, 0.05, (STUDIES, n)))
        truth = float(values.mean())
    ends = [paired_tests.compute_paired_test([study]) for study in values]
    low, high = (np.array([row[end] for row in ends]) for end in ("ci_low", "ci_high"))
    least = {"lognormal": 0.91, "rare": 0.87}.get(kind, 0.93) if n == 20 else 0.93
    assert enough(share(low, high, truth), STUDIES, least, 0.98)


@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_ratio_of_few_timings(repeats: int, kind: str) -> None:
    """Normal logarithms: wider, since nobody sees from so few that they are no skewed ones."""
    rng = np.random.default_rng(repeats)
    logs = (
        rng.normal(size=(4000, repeats))
        if kind == "normal"
        else rng.exponential(size=(4000, repeats)) - 1
    )
    logs *= 0.1
    ratios, errors = np.exp(logs.mean(axis=1)), logs.std(axis=1, ddof=1) / repeats**0.5
    ends = [
        paired_tests.ratio_interval(r, r * error, repeats)
        for r, error in zip(ratios, errors, strict=True)
    ]
    low, high = np.array(ends).T
    assert enough(share(low, high, 1.0), 4000, 0.93, 1.0)
