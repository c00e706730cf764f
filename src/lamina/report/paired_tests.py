"""Which of two selectors is better at equal size and repair: paired tests on the documents that both were tested on.

A test flips the signs of the documents' differences, which are as likely as their opposites if the selectors are equal.
For answers that are right or wrong, this is McNemar's exact test. All documents of a task have the same weight, and so
have all tasks of a mean. Holm's step-down method [Holm 1979] corrects the tests of one size and repair together for
their number.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import duckdb
import numpy as np
from scipy.stats import binomtest, norm
from scipy.stats import t as student

from lamina.report.answers import grouped, rows

# From so many documents on, sums of flipped differences are as good as normal; below, so many draws.
MANY, DRAWS = 50, 9999
NOISY = 3  # an interval of a ratio whose ends are further apart says nothing of it
ALL = "all"

# What the tests are about: each document's value, higher being better, in the main metric of an own task.
VALUES = """
SELECT s.model, s.calibration, s.task, if(s.metric = 'perplexity', 'nll', s.metric) AS metric, s.removed,
    coalesce(r.layers, s.removed) AS layers, s.repair, s.healing, s.selector,
    list(d.sample ORDER BY d.sample) AS samples,
    list(if(s.higher_is_better, d.value, -d.value) ORDER BY d.sample) AS values
FROM scores AS s
JOIN benchmark_samples AS d USING (model, calibration, selector, removed, repair, healing, task)
LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
WHERE s.own AND s.removed > 0 AND d.metric = if(s.metric = 'perplexity', 'nll', s.metric)
GROUP BY ALL HAVING bool_and(isfinite(d.value)) ORDER BY ALL
"""
CELL = ("model", "removed", "repair", "healing")
SIZE = "layers"  # so many attentions are a smaller cut than so many layers

Values = dict[tuple[str, str, str], dict[int, float]]
"""By calibration, task and metric: what was measured of each document, or its difference between two selectors."""


def compared(connection: duckdb.DuckDBPyConnection) -> Iterator[dict[str, Any]]:
    """Rows of table `comparisons`, from the views `scores`, `benchmark_samples` and `removal_order`; no rows for a single
    selector, nor for two that count other units.
    """
    for (*cell, _), measured in grouped(rows(connection, VALUES), *CELL, SIZE).items():
        selectors: dict[str, Values] = {}
        for row in measured:
            place = row["calibration"], row["task"], row["metric"]
            selectors.setdefault(row["selector"], {})[place] = dict(
                zip(row["samples"], row["values"], strict=True)
            )
        singles: list[dict[str, Any]] = []
        means: list[dict[str, Any]] = []
        for one, other in combinations(
            sorted(selectors, key=lambda name: (name != "accuracy", name)), 2
        ):
            mine, theirs = selectors[one], selectors[other]
            differences: Values = {
                place: {
                    n: mine[place][n] - theirs[place][n]
                    for n in mine[place].keys() & theirs[place].keys()
                }
                for place in sorted(mine.keys() & theirs.keys())
            }
            differences = {
                place: by_sample for place, by_sample in differences.items() if by_sample
            }
            pair = dict(zip(CELL, cell, strict=True)) | {"selector": one, "rival": other}
            for (calibration, task, metric), by_sample in differences.items():
                where = {"calibration": calibration, "task": task, "metric": metric}
                singles.append(pair | where | tested([list(by_sample.values())]))
            choices = {
                place: by_sample for place, by_sample in differences.items() if place[2] != "nll"
            }
            if choices:
                means.append(
                    pair
                    | {"calibration": ALL, "task": ALL, "metric": "accuracy"}
                    | together(choices)
                )
        for family in (singles, means):
            for row, corrected in zip(
                family, holm([row["p_value"] for row in family]), strict=True
            ):
                yield row | {"p_holm": corrected}


def together(differences: Values) -> dict[str, Any]:
    """The mean over tasks. The differences of a document under several calibrations add up: it counts once."""
    by_task: dict[str, dict[int, float]] = {}
    for (_, task, _), by_sample in differences.items():
        for sample, value in by_sample.items():
            share = value / len(by_sample) / len(differences)
            by_task.setdefault(task, {}).setdefault(sample, 0.0)
            by_task[task][sample] += share
    return tested(
        [
            np.array(list(by_sample.values())) * len(by_sample) * len(by_task)
            for by_sample in by_task.values()
        ]
    )


def tested(differences: Sequence[Sequence[float] | np.ndarray]) -> dict[str, Any]:
    """The columns of a comparison, from differences by task and document. The mean is over tasks, of means over
    documents.
    """
    tasks = [np.asarray(task, dtype=float) for task in differences]
    every = np.concatenate([task / len(task) / len(tasks) for task in tasks])
    error = float(np.sqrt(sum(_variance(task) for task in tasks))) / len(tasks)
    mean = float(every.sum())
    low, high = reaches(error, sum(map(_third, tasks)) / len(tasks) ** 3, len(every) - len(tasks))
    return {
        "difference": mean,
        "ci_low": mean - low,
        "ci_high": mean + high,
        "n_samples": len(every),
        "n_different": int((every != 0).sum()),
        "p_value": flipped(every),
    }


def reaches(error: float, third: float, degrees: int) -> tuple[float, float]:
    """How far the 95 % interval of a mean reaches below and above it; NaN for a single number.

    `third` is the third cumulant of the mean, 0 where its distribution is symmetric. The wider of Student's t and of
    Hall's transformation of it, which takes off its skewness [Hall 1992, J. R. Stat. Soc. B 54]: with a = third /
    error^3, t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 is nearly as normal as t is of normal numbers.
    """
    quantile = float(student.ppf(0.975, degrees)) if degrees > 0 else math.nan
    skewness = third / error**3 if error else 0.0
    if abs(skewness) < 1e-6:
        return quantile * error, quantile * error
    below, above = (
        3 / skewness * (math.cbrt(1 + skewness * (end - skewness / 6)) - 1)
        for end in (quantile, -quantile)
    )
    return max(quantile, below) * error, max(quantile, -above) * error


def ratio_interval(ratio: float, stderr: float, repeats: int) -> tuple[float, float]:
    """95 % interval of a geometric mean of `repeats` ratios, by Student's t of their logarithms.

    Times are skewed, which so few of them do not show. With half the degrees of freedom the interval also holds for
    exponential ones; for others it is wider than it need be.
    """
    reach = float(student.ppf(0.975, timing_degrees(repeats))) * stderr / ratio
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def timing_degrees(repeats: int) -> int:
    """Degrees of freedom of an interval over `repeats` timings."""
    return max(1, (repeats - 1) // 2)


def _variance(differences: np.ndarray) -> float:
    """Of a mean.

    If answers are right or wrong, all differences have one size or are zero. Few or no differences must not make the
    mean certain, so one document is added that differs in each direction [Bonett and Price 2012]; SQL has the same in
    `paired_stderr`.
    """
    count, sizes = len(differences), abs(differences[differences != 0])
    if len(sizes) and not _alike(sizes):
        return float(differences.var(ddof=1) / count)
    squares = (differences**2).sum() + 2 * (sizes[0] ** 2 if len(sizes) else 1.0)
    mean = differences.sum() / (count + 2)
    return float((squares / (count + 2) - mean**2) / (count + 2))


def _third(differences: np.ndarray) -> float:
    """Third cumulant of a mean; 0 for answers that are right or wrong, whose variance allows for it, and for few."""
    count, sizes = len(differences), abs(differences[differences != 0])
    if count < 3 or not len(sizes) or _alike(sizes):
        return 0.0
    return float(
        ((differences - differences.mean()) ** 3).sum() / ((count - 1) * (count - 2) * count)
    )


def _alike(sizes: np.ndarray) -> bool:
    return bool(np.ptp(sizes) <= 1e-9 * sizes.max())


def flipped(differences: np.ndarray) -> float:
    """Two-sided p of a sum under flips of the signs of its terms; exact where all nonzero terms have one size."""
    there = differences[differences != 0]
    if not len(there):
        return 1.0
    if _alike(abs(there)):
        return float(binomtest(int((there > 0).sum()), len(there)).pvalue)
    if len(there) >= MANY:
        return float(2 * norm.sf(abs(there.sum()) / np.sqrt((there**2).sum())))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (DRAWS, len(there)))
    as_far = abs(signs @ there) >= abs(there.sum()) * (1 - 1e-9)
    return float((1 + as_far.sum()) / (1 + DRAWS))


def holm(p_values: Iterable[float]) -> list[float]:
    """p values corrected for their number, in the order given."""
    given = np.array(list(p_values))
    order = np.argsort(given, kind="stable")
    corrected = np.empty(len(given))
    corrected[order] = np.minimum(
        1, np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    )
    return [float(p) for p in corrected]
