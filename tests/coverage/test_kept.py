"""Whether intervals and the word `certain` of what variants keep hold, over many planted studies at once.

A study is a model of its own in one set of tables, so that the views answer for all of them together.
"""

from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy.stats import norm

from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows
from tests.given.plausible_tables import VIEWS, write_tables

pytestmark = pytest.mark.slow
KEEP, TRIED, Z95 = 0.95, 35, 1.959964
BASE = dict(calibration="none", selector="none", removed=0, repair="none", healing="none")
CUT = BASE | dict(removed=2)


def planted(
    n: int, truth: float, alike: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Answers of a base model, (n,), and of variants that all keep the same share of its accuracy, (variants, n).

    They lose the same documents the more, the more they are `alike`, and a tenth of what was wrong they get right.
    """
    base = rng.random(n) < 0.8
    luck = alike**0.5 * rng.standard_normal(n) + (1 - alike) ** 0.5 * rng.standard_normal(
        (TRIED, n)
    )
    lost = (0.8 * (1 - truth) + 0.2 * 0.1) / 0.8
    return base, np.where(base, norm.cdf(luck) > lost, norm.cdf(luck) < 0.1)


def sure(ahead: np.ndarray, error: np.ndarray, step: np.ndarray, tried: int = TRIED) -> np.ndarray:
    """What the macro `certain` says of each, one of so many tried."""
    with database.connect_views(VIEWS, []) as connection:
        connection.register(
            "tried", {"ahead": ahead.ravel(), "error": error.ravel(), "step": step.ravel()}
        )
        answer = connection.execute(
            f"SELECT certain(ahead, error, step, {tried}) AS sure FROM tried"
        ).fetchnumpy()
    return np.asarray(answer["sure"], dtype=bool).reshape(ahead.shape)


@pytest.mark.parametrize("alike", [0.0, 0.6])
@pytest.mark.parametrize("truth", [0.94, 0.945, 0.9499])
@pytest.mark.parametrize("n", [150, 600])
def test_the_best_of_many_that_keep_too_little_is_hardly_ever_certain(
    n: int, truth: float, alike: float
) -> None:
    """It is named, since it looks good enough; that it is *certain* may happen in one study of forty."""
    rng, runs = np.random.default_rng(0), 400
    told = []
    for _ in range(runs):
        base, found = planted(n, truth, alike, rng)
        kept = found.mean(axis=1) / base.mean()
        error = (found - kept[:, None] * base).std(axis=1, ddof=1) / n**0.5 / base.mean()
        told.append(np.stack([kept - KEEP, error, np.full(TRIED, 1 / base.sum())]))
    ahead, error, step = np.array(told).transpose(1, 0, 2)
    certain = sure(ahead, error, step).any(axis=1).mean()
    named = (ahead >= 0).any(axis=1).mean()
    naive = (ahead > Z95 * error).any(axis=1).mean()
    assert named > 0.85 and naive > 0.08
    assert certain <= 0.025 + 2 * (0.025 * 0.975 / runs) ** 0.5, (certain, naive, named)


def test_certain_is_said_where_enough_is_kept() -> None:
    """Power: over 1,500 documents a variant that keeps 99.5 % is certain to keep 95 % among 35, nearly always."""
    rng, n, told = np.random.default_rng(1), 1500, []
    for _ in range(100):
        base, found = planted(n, 0.995, 0.0, rng)
        kept = found[0].mean() / base.mean()
        error = (found[0] - kept * base).std(ddof=1) / n**0.5 / base.mean()
        told.append((kept - KEEP, error, 1 / base.sum()))
    assert sure(*np.array(told).T).mean() > 0.85


def study(folder: Path, models: int, rng: np.random.Generator) -> duckdb.DuckDBPyConnection:
    """Studies of three draws of one calibration, whose variants answer the same documents, mostly alike."""
    draws, n, benchmarks, samples = ("c", "c.2", "c.3"), 300, [], []
    for model in range(models):
        hard, slips = rng.random(n), rng.normal(0, 0.1, (4, n))
        text = rng.gamma(4, 0.3, n // 3)
        for place, (key, share) in enumerate(
            [(BASE, 0.9), *((CUT | dict(calibration=name, selector="s"), 0.6) for name in draws)]
        ):
            key = dict(model=f"m{model}") | key
            right = (norm.cdf(norm.ppf(hard) + slips[place]) < share).astype(float)
            stderr = float(right.std(ddof=1) / n**0.5)
            told = dict(
                task="t", metric="acc", value=float(right.mean()), stderr=stderr, n_samples=n
            )
            benchmarks.append(key | told | dict(higher_is_better=True))
            samples += [
                key | dict(task="t", metric="acc", sample=i, value=x)
                for i, x in enumerate(right.tolist())
            ]
            read = text + 0.2 * (place > 0)
            told = dict(
                task="text",
                metric="perplexity",
                value=float(np.exp(read.mean())),
                stderr=0.1,
                n_samples=len(read),
            )
            benchmarks.append(key | told | dict(higher_is_better=False))
    calibrations = [
        dict(
            model=f"m{model}",
            calibration=name,
            kind="choices",
            source="t",
            chance_accuracy=0.25,
            replicate_of="c",
        )
        for model in range(models)
        for name in draws
    ]
    write_tables(folder, benchmarks=benchmarks, calibrations=calibrations)
    parquet.write_table(
        folder / "benchmark_samples.parquet", parquet.from_rows("benchmark_samples", samples)
    )
    return database.connect_views(VIEWS, sorted(folder.glob("*.parquet")))


def test_errors_over_documents_that_draws_share_cover(tmp_path: Path) -> None:
    """Of the frontier's accuracy and of what a recipe keeps."""
    models = 300
    run = study(tmp_path, models, np.random.default_rng(2))
    shares = {
        level: norm.cdf(norm.ppf(level) / np.hypot(1, 0.1)) for level in (0.6, 0.9)
    }  # with the slips
    found = query_rows(run, "FROM frontier")
    assert len(found) == models
    inside = [abs(row["accuracy"] - shares[0.6]) <= Z95 * row["accuracy_stderr"] for row in found]
    assert 0.92 <= np.mean(inside) <= 0.98
    kept = query_rows(run, "FROM answers WHERE question = 'recipe'")
    assert len(kept) == models
    inside = [
        abs(row["kept"] - shares[0.6] / shares[0.9]) <= Z95 * row["kept_stderr"] for row in kept
    ]
    assert 0.92 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize(
    ("over_selectors", "over_calibrations", "most"),
    [(0.1, 0.0, 0.975), (0.0, 0.1, 0.975), (0.1, 0.1, 1.0)],
)
def test_means_over_draws_of_selectors_and_calibrations_cover(
    tmp_path: Path, over_selectors: float, over_calibrations: float, most: float
) -> None:
    """Three seeds of a random selector on four draws of a calibration; where both vary the interval is wider."""
    rng, models = np.random.default_rng(3), 400
    key = dict(task="t", metric="acc", stderr=0.01, n_samples=400, higher_is_better=True)
    benchmarks, calibrations, plans = [], [], []
    for number in range(models):
        model = f"m{number}"
        benchmarks.append(dict(model=model) | BASE | key | dict(value=0.9))
        seeds, draws = (
            over_selectors * rng.standard_normal(3),
            over_calibrations * rng.standard_normal(4),
        )
        for c, drawn in enumerate(draws):
            told = dict(kind="choices", source="t", chance_accuracy=0.25, replicate_of="c")
            calibrations.append(dict(model=model, calibration=f"c.{c}") | told)
            for s, seed in enumerate(seeds):
                cut = CUT | dict(model=model, calibration=f"c.{c}", selector=f"r.{s}")
                benchmarks.append(cut | key | dict(value=0.5 + seed + drawn))
                plan = dict(
                    model=model,
                    calibration=f"c.{c}",
                    selector=f"r.{s}",
                    removed=2,
                    unit="1",
                    position=1,
                )
                plans.append(plan | dict(replicate_of="r"))
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=calibrations, plans=plans)
    found = query_rows(database.connect_views(VIEWS, files), "FROM score_means")
    assert len(found) == models and {row["n_draws"] for row in found} == {12}
    inside = np.mean([row["ci_low"] <= 0.5 <= row["ci_high"] for row in found])
    assert 0.925 <= inside <= most


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize(("lost", "won"), [(0.01, 0.0), (0.03, 0.0), (0.04, 0.03), (0.15, 0.05)])
def test_change_and_kept_cover_where_few_documents_differ(
    tmp_path: Path, n: int, lost: float, won: float
) -> None:
    """Of the right answers so many are lost, of all documents so many won; a study is a model."""
    rng, models = np.random.default_rng(n), 300
    benchmarks, samples = [], []
    for number in range(models):
        base = rng.random(n) < 0.8
        luck = rng.random(n)
        cut = np.where(base, luck >= lost / 0.8, luck < won / 0.2)
        for key, right in ((BASE, base), (CUT | dict(calibration="c", selector="s"), cut)):
            key = dict(model=f"m{number}", task="t", metric="acc") | key
            stderr = float(right.std(ddof=1) / n**0.5)
            told = dict(
                value=float(right.mean()), stderr=stderr, n_samples=n, higher_is_better=True
            )
            benchmarks.append(key | told)
            samples += [key | dict(sample=i, value=float(x)) for i, x in enumerate(right)]
    calibrations = [
        dict(model=f"m{number}", calibration="c", kind="choices", source="t", chance_accuracy=0.25)
        for number in range(models)
    ]
    write_tables(tmp_path, benchmarks=benchmarks, calibrations=calibrations)
    parquet.write_table(
        tmp_path / "benchmark_samples.parquet", parquet.from_rows("benchmark_samples", samples)
    )
    found = query_rows(
        database.connect_views(VIEWS, sorted(tmp_path.glob("*.parquet"))),
        "FROM scores WHERE removed > 0",
    )
    assert len(found) == models
    truths = {
        "change": won - lost,
        "kept": 1 + (won - lost) / 0.8,
        "kept_above_chance": 1 + (won - lost) / 0.55,
    }
    for name, truth in truths.items():
        there = [row for row in found if row[name] is not None]
        inside = np.mean([abs(row[name] - truth) <= Z95 * row[f"{name}_stderr"] for row in there])
        assert inside >= 0.95 - 3 * (0.05 * 0.95 / models) ** 0.5, (name, inside)


@pytest.mark.parametrize("n", [30, 100, 400])
@pytest.mark.parametrize("differ", [0.05, 0.2, 0.5])
def test_a_change_of_nothing_is_hardly_ever_certain_of_one_of_eight(n: int, differ: float) -> None:
    """As often more as fewer right answers: to call one of eight certain is wrong, and may happen in one of twenty."""
    rng, tried, studies = np.random.default_rng(n), 8, 2000
    differences = np.where(
        rng.random((studies, tried, n)) < differ, rng.choice([-1, 1], (studies, tried, n)), 0
    )
    change, count = abs(differences.mean(axis=2)), (differences != 0).sum(axis=2)
    error = np.sqrt((count + 2) / (n + 2) - (change * n / (n + 2)) ** 2) / (n + 2) ** 0.5
    certain = sure(change, error, change / n, tried).any(axis=1).mean()
    assert certain <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5
