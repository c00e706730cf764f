"""How many of the planted studies each kind of 95 % interval holds.

`PYTHONPATH=src:. python reports/scripts/coverage.py` prints rows of the table of reports/coverage.md, one per plant.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
from scipy.stats import rankdata

from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import ranking_reliability, true_correlation
from lamina_workflow.report import database, paired_tests, queries
from lamina_workflow.report.answers import query_rows
from tests.coverage.test_intervals import planted
from tests.given.plausible_tables import write_tables

Z95 = 1.959964
BASE = dict(calibration="none", selector="none", removed=0, repair="none", healing="none")
CUT = BASE | dict(calibration="c", selector="s", removed=2)


def views(tasks: list[tuple[str, str, np.ndarray, np.ndarray]]) -> duckdb.DuckDBPyConnection:
    """The views over such studies: model, task, and the answers of the base model and of the cut one."""
    benchmarks, samples = [], []
    for model, task, *both in tasks:
        for variant, right in zip((BASE, CUT), both, strict=True):
            key = dict(model=model, task=task, metric="acc") | variant
            stderr = float(right.std(ddof=1) / len(right) ** 0.5)
            told = dict(
                value=float(right.mean()),
                stderr=stderr,
                n_samples=len(right),
                higher_is_better=True,
            )
            benchmarks.append(key | told)
            samples += [key | dict(sample=i, value=float(x)) for i, x in enumerate(right)]
    folder = Path(tempfile.mkdtemp())
    return database.connect_views(
        write_tables(folder, benchmarks=benchmarks, benchmark_samples=samples)
    )


def losing(n: int, lost: float, models: int) -> list[dict]:
    """Rows of view `scores`: base models that are right on .8 of n documents, and lose so many of all documents."""
    rng = np.random.default_rng(n)
    studies = []
    for number in range(models):
        base = rng.random(n) < 0.8
        studies.append((f"m{number}", "t", base, base & (rng.random(n) >= lost / 0.8)))
    return query_rows(views(studies), "FROM scores WHERE removed > 0")


def certain_of_nothing(n: int, models: int, tried: int) -> float:
    """Share of plans of which a change of nothing is called certain; .2 of the answers turn, either way alike."""
    rng, studies = np.random.default_rng(1), []
    for number in range(models * tried):
        kind = rng.random(n)
        studies.append(
            (f"m{number // tried}", f"t{number % tried}", kind < 0.5, (kind < 0.4) | (kind >= 0.9))
        )
    query = queries.read_query("what_pruning_for_one_task_costs_the_others")
    found = query_rows(views(studies), query)
    return len({row["model"] for row in found if row["certain"]}) / models


def measured() -> Iterator[tuple[str, float]]:
    for n, lost in [(n, lost) for n in (30, 100, 500) for lost in (0.01, 0.03)]:
        found = losing(n, lost, 400 if n < 500 else 150)
        for name, truth in (("change", -lost), ("kept", 1 - lost / 0.8)):
            inside = [abs(row[name] - truth) <= Z95 * row[f"{name}_stderr"] for row in found]
            yield f"`{name}`, {lost:.0%} of answers lost, n = {n}", float(np.mean(inside))
    rng = np.random.default_rng(0)
    for n, truth, noise in ((100, 0.96, 0.3), (100, 0.65, 0.1), (100, 0.0, 0.1)):
        held = []
        for _ in range(200):
            x, y, first, second = planted(rng, truth, 1, n, (noise, noise))
            found = true_correlation(first, second, n, ranked=True)
            true = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
            held.append(found[1] - 1e-9 <= true <= found[2] + 1e-9)
        yield f"Spearman, 8 layers, true Pearson {truth}, noise {noise}", float(np.mean(held))
    for kind in ("normal", "exponential", "two far"):
        held = []
        for study in range(200):
            far = np.where(np.arange(8) < 2, 2.5, 0.0) + 0.3 * rng.normal(size=8)
            truth = {
                "normal": rng.normal(size=8),
                "exponential": rng.exponential(size=8),
                "two far": far,
            }[kind]
            truth = (truth - truth.mean()) / truth.std(ddof=1)
            samples = truth[:, None] + 0.4 * 60**0.5 * rng.normal(size=(8, 60))
            value = ranking_reliability(bootstrap_weights(60, study, 200) @ samples.T, 60)
            one, other = (
                rankdata(truth + 0.4 * rng.normal(size=(200, 8)), axis=1) for _ in range(2)
            )
            true = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)])
            held.append(value is not None and value[1] <= true <= value[2])
        yield f"`reliability` as agreement of rankings, 8 layers, {kind}", float(np.mean(held))
    for n in (20, 50, 300):
        for kind in ("exponential", "lognormal"):
            values = getattr(rng, kind)(size=(2000, n))
            ends = [paired_tests.compute_paired_test([each]) for each in values]
            truth = {"exponential": 1.0, "lognormal": np.exp(0.5)}[kind]
            inside = [row["ci_low"] <= truth <= row["ci_high"] for row in ends]
            yield f"comparison of losses, {kind}, n = {n}", float(np.mean(inside))
    for kind in ("normal", "exponential"):
        logs = 0.1 * (
            rng.normal(size=(4000, 5)) if kind == "normal" else rng.exponential(size=(4000, 5)) - 1
        )
        ratios, errors = np.exp(logs.mean(axis=1)), logs.std(axis=1, ddof=1) / 5**0.5
        ends = [
            paired_tests.ratio_interval(r, r * error, 5)
            for r, error in zip(ratios, errors, strict=True)
        ]
        yield (
            f"latency, 5 repeats, {kind}",
            float(np.mean([low <= 1 <= high for low, high in ends])),
        )
    yield (
        "one of 8 changes of 0 called `certain`, n = 30 (at most 5)",
        certain_of_nothing(30, 500, 8),
    )


if __name__ == "__main__":
    for name, share in measured():
        print(f"| {name} | {100 * share:.1f} |", flush=True)
