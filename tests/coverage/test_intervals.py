"""Every kind of interval on planted truths: 95 % of many drawn studies should hold the truth.

The share of S studies is itself off by two of its standard errors, √(.95 · .05 / S), in one case
of twenty, so three are left. Samples are 20 to 600.

Known to be short: comparisons of very skewed losses at 20 documents (lognormal with σ = 1), 91 %.
Known to be wide: rare answers, whose counts are whole numbers, and Spearman's correlation.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
from tests import ROOT
from tests.coverage.examples import assert_coverage, share_held

pytestmark = pytest.mark.slow

N_STUDIES = 1000
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]


@dataclass(frozen=True)
class Losses:
    """A distribution of losses and its mean."""

    draw: Draw
    mean: float


def draw_on_a_tenth(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    has_loss = generator.random(shape) < 0.1
    return np.where(has_loss, generator.standard_exponential(shape), 0.0)


def draw_rare(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    """Large on 15 % of the documents, and next to nothing on the others."""
    is_large = generator.random(shape) < 0.15
    return np.where(is_large, generator.lognormal(0, 1, shape), generator.normal(0, 0.05, shape))


LOSSES = {
    "normal": Losses(lambda generator, shape: generator.standard_normal(shape), 0.0),
    "exponential": Losses(lambda generator, shape: generator.standard_exponential(shape), 1.0),
    "bounded": Losses(lambda generator, shape: generator.beta(1, 9, shape), 0.1),
    "lognormal": Losses(lambda generator, shape: generator.lognormal(0, 1, shape), np.exp(0.5)),
    "very skewed": Losses(
        lambda generator, shape: generator.lognormal(0, 1.5, shape), np.exp(1.125)
    ),
    "on a tenth": Losses(draw_on_a_tenth, 0.1),
    "rare": Losses(draw_rare, 0.15 * np.exp(0.5)),
}


def mean_interval(
    losses: np.ndarray, n_tokens: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of metrics whose scores are means, for (studies, samples).

    Studies are in the place of units.
    """
    n_studies, n_samples = losses.shape
    weights = bootstrap_weights(n_samples, 0)
    return studentised_interval(
        weighted_ratio(weights, losses, n_tokens),
        weighted_ratio_errors(weights, losses, n_tokens),
        mean_skewness(losses, n_tokens),
        np.full(n_studies, n_samples),
    )


@pytest.mark.parametrize("n_samples", [50, 100, 200, 600])
@pytest.mark.parametrize(
    "kind", ["normal", "exponential", "bounded", "lognormal", "very skewed", "on a tenth"]
)
def test_mean_of_losses(n_samples: int, kind: str) -> None:
    """Cosine, margin, output_*, acceptance, taylor, residual. Rare losses: wider."""
    generator = np.random.default_rng(n_samples)
    losses = LOSSES[kind].draw(generator, (N_STUDIES, n_samples))

    low, high = mean_interval(losses)

    assert_coverage(share_held(low, high, LOSSES[kind].mean), N_STUDIES, most=0.99)


@pytest.mark.parametrize("n_samples", [50, 100, 600])
def test_loss_per_token(n_samples: int) -> None:
    """Perplexity: samples of 1 to 40 tokens, longer ones with less loss per token."""
    generator = np.random.default_rng(n_samples)
    n_tokens = generator.integers(1, 41, (N_STUDIES, n_samples)).astype(float)
    noise = generator.normal(0, 1, (N_STUDIES, n_samples)) * n_tokens**0.5
    losses = n_tokens + 1 + noise

    low, high = mean_interval(losses, n_tokens)

    mean_length = 20.5
    true_loss = 1 + 1 / mean_length
    assert_coverage(share_held(low, high, true_loss), N_STUDIES)


BASE_ACCURACY = 0.9
CHANCE = 0.25


def draw_answers(
    generator: np.random.Generator, n_samples: int, lost: float, won: float, n_units: int
) -> Columns:
    """Answers of a base model and without each unit, which loses and wins such shares of them."""
    base = generator.random(n_samples) < BASE_ACCURACY
    is_kept = generator.random((n_units, n_samples)) >= lost
    is_won = generator.random((n_units, n_samples)) < won
    without_unit = np.where(base, is_kept, is_won)
    answers = np.vstack([base, without_unit]).astype(float)
    units = tuple(str(unit) for unit in range(n_units))
    columns = {"correct": answers, "correct_norm": answers}
    return Columns(units, columns, np.full(n_units + 1, n_samples))


@pytest.mark.parametrize("n_samples", [20, 100, 600])
@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.03, 0.0), (0.2, 0.1), (0.6, 0.2)])
def test_accuracy_relevance(n_samples: int, lost: float, won: float) -> None:
    """In 200 studies of five units, each with a base model of its own. Rare answers: wider."""
    generator = np.random.default_rng(n_samples)
    accuracy_without_unit = BASE_ACCURACY * (1 - lost) + (1 - BASE_ACCURACY) * won
    truth = 1 - (accuracy_without_unit - CHANCE) / (BASE_ACCURACY - CHANCE)

    shares: list[float] = []
    for study in range(200):
        columns = draw_answers(generator, n_samples, lost, won, n_units=5)
        context = Context(CHANCE, "acc", seed=study)
        low, high = Accuracy().interval(columns, context, columns.seen, columns.seen)
        shares.append(share_held(low, high, truth))

    # Units of a study share their base model, so that they count less than studies.
    assert_coverage(float(np.mean(shares)), 400, most=1.0)


@pytest.mark.parametrize("n_samples", [20, 100, 600])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5, 0.95, 1.0])
def test_share_of_changed_tokens(n_samples: int, share: float) -> None:
    """Over true shares near one, because coverage jumps from one whole number to the next."""
    n_units = 4000
    generator = np.random.default_rng(n_samples)
    true_shares = np.clip(share * generator.uniform(0.8, 1.2, n_units), 0, 1)
    is_changed = generator.random((n_units, n_samples)) < true_shares[:, None]
    base = np.zeros(n_samples)
    units = tuple(str(unit) for unit in range(n_units))
    columns = Columns(
        units,
        {"output_flips": np.vstack([base, is_changed])},
        np.full(n_units + 1, n_samples),
    )

    low, high = TokenAgreement().counted_interval(columns)

    assert_coverage(share_held(low, high, true_shares), n_units, most=1.0)


@dataclass(frozen=True)
class PlantedMetrics:
    """Two metrics with a known correlation of their true scores, and draws of what is measured."""

    true_first: np.ndarray
    true_second: np.ndarray
    first_draws: np.ndarray
    """Row 0 is the estimate, the others are bootstrap draws."""
    second_draws: np.ndarray


def plant_metrics(
    generator: np.random.Generator,
    correlation: float,
    n_tasks: int,
    n_samples: int,
    errors: tuple[float, float],
) -> PlantedMetrics:
    """True scores of eight units per task with exactly this correlation.

    errors: The standard errors of both metrics' scores, whatever the number of samples. Half of
        each variance is common to both.
    """
    n_scores = 8 * n_tasks
    free_scores = generator.normal(size=(n_scores, 2))
    orthogonal, _ = np.linalg.qr(free_scores - free_scores.mean(axis=0))
    first_axis, second_axis = orthogonal.T * n_scores**0.5
    true_first = first_axis
    true_second = correlation * first_axis + (1 - correlation**2) ** 0.5 * second_axis

    weights = bootstrap_weights(n_samples, int(generator.integers(1 << 30)), 300)
    common_noise = generator.normal(size=(n_scores, n_samples))

    def draw_scores(true_scores: np.ndarray, error: float) -> np.ndarray:
        own_noise = generator.normal(size=(n_scores, n_samples))
        noise = (common_noise + own_noise) / 2**0.5
        samples = true_scores[:, None] + error * n_samples**0.5 * noise
        return weights @ samples.T

    return PlantedMetrics(
        true_first,
        true_second,
        draw_scores(true_first, errors[0]),
        draw_scores(true_second, errors[1]),
    )


def correlate(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1])


def correlation_is_held(metrics: PlantedMetrics, n_samples: int, ranked: bool) -> bool:
    """Whether the interval of a correlation holds that of the true scores."""
    true_first = metrics.true_first
    true_second = metrics.true_second
    if ranked:
        true_first = rankdata(true_first)
        true_second = rankdata(true_second)
    interval = true_correlation(metrics.first_draws, metrics.second_draws, n_samples, ranked)
    assert interval is not None
    estimate, low, high = interval
    assert low <= estimate <= high
    return low - 1e-9 <= correlate(true_first, true_second) <= high + 1e-9


@pytest.mark.parametrize("correlation", [0.96, 0.65, 0.0, -0.65])
@pytest.mark.parametrize(
    ("n_samples", "errors"), [(20, (0.5, 0.3)), (100, (0.3, 0.3)), (600, (0.6, 0.1))]
)
def test_correlations_of_true_scores(
    correlation: float, n_samples: int, errors: tuple[float, float]
) -> None:
    """Percentiles of the correlations of bootstrap draws would count the noise twice."""
    n_studies = 100
    generator = np.random.default_rng(round(100 * correlation) + n_samples + 1000)
    pearson_held: list[bool] = []
    spearman_held: list[bool] = []
    percentiles_held: list[bool] = []
    for _ in range(n_studies):
        metrics = plant_metrics(generator, correlation, 4, n_samples, errors)

        pearson_held.append(correlation_is_held(metrics, n_samples, ranked=False))
        spearman_held.append(correlation_is_held(metrics, n_samples, ranked=True))

        draws = zip(metrics.first_draws[1:], metrics.second_draws[1:], strict=True)
        drawn_correlations = [correlate(first, second) for first, second in draws]
        low, high = np.percentile(drawn_correlations, [2.5, 97.5])
        percentiles_held.append(low <= correlation <= high)

    assert_coverage(float(np.mean(pearson_held)), n_studies, most=1.0)
    assert_coverage(float(np.mean(spearman_held)), n_studies, least=0.92, most=1.0)
    if correlation == 0.96:
        assert np.mean(percentiles_held) < 0.5


@pytest.mark.parametrize("correlation", [0.96, 0.65, 0.0])
@pytest.mark.parametrize("error", [0.1, 0.3])
def test_spearman_of_one_task_of_eight_units(correlation: float, error: float) -> None:
    """Each swap of two of so few units is a step of the correlation: wider."""
    n_studies = 100
    generator = np.random.default_rng(round(100 * correlation) + 100)
    held: list[bool] = []
    for _ in range(n_studies):
        metrics = plant_metrics(generator, correlation, 1, 100, (error, error))
        held.append(correlation_is_held(metrics, 100, ranked=True))

    assert_coverage(float(np.mean(held)), n_studies, most=1.0)


def draw_true_scores(generator: np.random.Generator, kind: str, n_units: int) -> np.ndarray:
    """Standardised true scores: normal, skewed, or alike but for two units."""
    if kind == "normal":
        scores = generator.normal(size=n_units)
    elif kind == "exponential":
        scores = generator.exponential(size=n_units)
    else:
        scores = 0.3 * generator.normal(size=n_units)
        scores[:2] += 2.5
    return (scores - scores.mean()) / scores.std(ddof=1)


def mean_rank_agreement(
    generator: np.random.Generator, true_scores: np.ndarray, error: float
) -> float:
    """The mean rank correlation of two measurements of the same true scores."""
    correlations: list[float] = []
    for _ in range(100):
        first = true_scores + error * generator.normal(size=len(true_scores))
        second = true_scores + error * generator.normal(size=len(true_scores))
        correlations.append(correlate(rankdata(first), rankdata(second)))
    return float(np.mean(correlations))


@pytest.mark.parametrize("n_units", [8, 24])
@pytest.mark.parametrize("kind", ["normal", "exponential", "two apart"])
@pytest.mark.parametrize("error", [0.3, 1.0])
def test_reliability_of_a_ranking(n_units: int, kind: str, error: float) -> None:
    """Skewed true scores look like normal ones with noise: the noise is underestimated."""
    n_studies = 100
    n_samples = 60
    generator = np.random.default_rng(n_units)
    held: list[bool] = []
    for study in range(n_studies):
        true_scores = draw_true_scores(generator, kind, n_units)
        noise = error * n_samples**0.5 * generator.normal(size=(n_units, n_samples))
        samples = true_scores[:, None] + noise
        draws = bootstrap_weights(n_samples, study, 200) @ samples.T

        interval = ranking_reliability(draws, n_samples)

        agreement = mean_rank_agreement(generator, true_scores, error)
        is_held = False
        if interval is not None:
            _, low, high = interval
            is_held = low <= agreement <= high
        held.append(is_held)

    assert_coverage(float(np.mean(held)), n_studies, least=0.9, most=1.0)


@dataclass(frozen=True)
class PlantedTasks:
    """One metric on five tasks of eight units."""

    variance_share: float
    """Of the true scores' variance, the share within units, across tasks."""
    draws: np.ndarray
    """(tasks, draws, units); draw 0 is the estimate."""


def plant_tasks(
    generator: np.random.Generator, spread: float, error: float, n_samples: int
) -> PlantedTasks:
    """Units differ with a standard deviation of 1, and each of them by `spread` between tasks."""
    true_scores = generator.normal(size=8) + spread * generator.normal(size=(5, 8))
    variance_share = true_scores.var(axis=0).mean() / true_scores.var()
    noise = error * n_samples**0.5 * generator.normal(size=(5, 8, n_samples))
    samples = true_scores[..., None] + noise
    weights = bootstrap_weights(n_samples, int(generator.integers(1 << 30)), 300)
    draws = np.einsum("dn,tun->tdu", weights, samples)
    return PlantedTasks(float(variance_share), draws)


def test_variance_ratio() -> None:
    n_studies = 150
    n_samples = 60
    generator = np.random.default_rng(0)
    held: list[bool] = []
    for _ in range(n_studies):
        first = plant_tasks(generator, spread=0.6, error=0.4, n_samples=n_samples)
        second = plant_tasks(generator, spread=1.0, error=0.1, n_samples=n_samples)

        interval, *_ = true_variance_ratio(first.draws, second.draws, n_samples)

        assert interval is not None
        estimate, low, high = interval
        assert low <= estimate <= high
        held.append(low <= first.variance_share / second.variance_share <= high)

    assert_coverage(float(np.mean(held)), n_studies, most=0.98)


@pytest.mark.parametrize("n_draws", [2, 3, 10, 30])
def test_intervals_over_draws_of_a_calibration_have_students_factor(n_draws: int) -> None:
    """View `relevance_means` takes it from its macro."""
    views = (ROOT / "sql/views.sql").read_text(encoding="utf-8")
    start = views.index("CREATE OR REPLACE MACRO t95")
    end = views.index(";", start)
    with duckdb.connect() as connection:
        connection.execute(views[start:end])

        (factor,) = connection.execute(f"SELECT t95({n_draws})").fetchone() or ()

    assert factor == pytest.approx(t.ppf(0.975, n_draws - 1), rel=2e-3)


def paired_intervals(studies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The interval of the mean difference of each study, from (studies, documents)."""
    rows = [paired_tests.compute_paired_test([differences]) for differences in studies]
    low = np.array([row["ci_low"] for row in rows])
    high = np.array([row["ci_high"] for row in rows])
    return low, high


@pytest.mark.parametrize("n_documents", [20, 100, 600])
@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.02, 0.02), (0.2, 0.1)])
def test_paired_difference_of_answers(n_documents: int, lost: float, won: float) -> None:
    """Comparisons of selectors, and of runs document by document; few that differ: wider."""
    generator = np.random.default_rng(n_documents)
    luck = generator.random((N_STUDIES, n_documents))
    differences = (luck < won).astype(float) - (luck > 1 - lost)

    low, high = paired_intervals(differences)

    assert_coverage(share_held(low, high, won - lost), N_STUDIES, least=0.92, most=1.0)


@pytest.mark.parametrize("n_documents", [20, 50, 300])
@pytest.mark.parametrize("kind", ["normal", "exponential", "lognormal", "rare"])
def test_paired_difference_of_losses(n_documents: int, kind: str) -> None:
    """Skewed nats per token, and such that differ on few documents, which 20 hardly show."""
    generator = np.random.default_rng(n_documents)
    differences = LOSSES[kind].draw(generator, (N_STUDIES, n_documents))

    low, high = paired_intervals(differences)

    least = 0.93
    if n_documents == 20:
        least = {"lognormal": 0.91, "rare": 0.87}.get(kind, 0.93)
    coverage = share_held(low, high, LOSSES[kind].mean)
    assert_coverage(coverage, N_STUDIES, least, most=0.98)


@pytest.mark.parametrize("n_repeats", [3, 5, 10])
@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_ratio_of_few_timings(n_repeats: int, kind: str) -> None:
    """Wider for normal logarithms, because so few do not show that they are not skewed."""
    n_studies = 4000
    generator = np.random.default_rng(n_repeats)
    losses = LOSSES[kind].draw(generator, (n_studies, n_repeats))
    logarithms = 0.1 * (losses - LOSSES[kind].mean)
    ratios = np.exp(logarithms.mean(axis=1))
    relative_errors = logarithms.std(axis=1, ddof=1) / n_repeats**0.5

    intervals = [
        paired_tests.ratio_interval(ratio, ratio * error, n_repeats)
        for ratio, error in zip(ratios, relative_errors, strict=True)
    ]

    low, high = np.array(intervals).T
    assert_coverage(share_held(low, high, 1.0), n_studies, most=1.0)
