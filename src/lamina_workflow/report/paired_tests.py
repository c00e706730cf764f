"""Which of two selectors is better at equal size and repair: paired tests on the documents of both.

A test flips the signs of the documents' differences, which are as likely as their opposites if the
selectors are equal. For answers that are right or wrong, this is McNemar's exact test. All
documents of a task have the same weight, and so have all tasks of a mean. Holm's step-down method
[Holm 1979] corrects the tests of one size and repair together for their number.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypedDict

import duckdb
import numpy as np
from scipy import stats

from lamina_workflow.report.answers import group_rows, query_rows

# A sum of so many flipped differences is as good as normal; of fewer, signs are drawn.
MIN_FOR_NORMAL = 50
N_SIGN_DRAWS = 9999
NOISY = (
    3  # an interval of a ratio says nothing about it if its ends are more than so many times apart
)
ALL = "all"  # the calibration and the task of a mean over tasks

# What is tested: each document's value, higher being better, in the main metric of an own task.
VALUES = """
SELECT s.model, s.calibration, s.task, if(s.metric = 'perplexity', 'nll', s.metric) AS metric,
    s.removed, coalesce(r.layers, s.removed) AS layers, s.repair, s.healing, s.selector,
    list(d.sample ORDER BY d.sample) AS samples,
    list(if(s.higher_is_better, d.value, -d.value) ORDER BY d.sample) AS values
FROM scores AS s
JOIN benchmark_samples AS d USING (model, calibration, selector, removed, repair, healing, task)
LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
WHERE s.own AND s.removed > 0 AND d.metric = if(s.metric = 'perplexity', 'nll', s.metric)
GROUP BY ALL HAVING bool_and(isfinite(d.value)) ORDER BY ALL
"""
CELL = ("model", "removed", "repair", "healing")
SIZE = "layers"  # n attentions alone are a smaller cut than n layers

TaskKey = tuple[str, str, str]  # calibration, task, metric
DocumentValues = dict[TaskKey, dict[int, float]]
"""What was measured on each document of each task, or its difference between two selectors."""


class DifferenceTest(TypedDict):
    """A difference, its 95 % interval and the two-sided p value of no difference."""

    difference: float
    ci_low: float
    ci_high: float
    p_value: float


class PairedTest(DifferenceTest):
    """A difference over documents that both variants were tested on."""

    n_samples: int  # documents
    n_different: int  # documents with a difference


def compare_selectors(connection: duckdb.DuckDBPyConnection) -> Iterator[dict[str, Any]]:
    """Rows of table `comparisons`, from views `scores`, `benchmark_samples` and `removal_order`.

    There are no rows for a single selector, nor for two that remove units of other kinds.
    """
    for (*cell, _), cell_rows in group_rows(query_rows(connection, VALUES), *CELL, SIZE).items():
        cell_keys = dict(zip(CELL, cell, strict=True))
        values_by_selector = _group_values(cell_rows)
        selectors = sorted(values_by_selector, key=lambda name: (name != "accuracy", name))

        task_rows: list[dict[str, Any]] = []
        mean_rows: list[dict[str, Any]] = []
        for selector, rival in combinations(selectors, 2):
            differences = _subtract_values(values_by_selector[selector], values_by_selector[rival])
            pair_keys = cell_keys | {"selector": selector, "rival": rival}
            task_rows += _test_tasks(pair_keys, differences)
            mean_rows += _test_mean(pair_keys, differences)
        yield from _with_holm(task_rows)
        yield from _with_holm(mean_rows)


def _group_values(value_rows: Iterable[Mapping[str, Any]]) -> dict[str, DocumentValues]:
    """By selector."""
    values_by_selector: dict[str, DocumentValues] = {}
    for row in value_rows:
        task_key = (row["calibration"], row["task"], row["metric"])
        value_by_sample = dict(zip(row["samples"], row["values"], strict=True))
        values_by_selector.setdefault(row["selector"], {})[task_key] = value_by_sample
    return values_by_selector


def _subtract_values(values: DocumentValues, rival_values: DocumentValues) -> DocumentValues:
    """The difference on each document that both were tested on, without tasks that have none."""
    differences: DocumentValues = {}
    for task_key in sorted(values.keys() & rival_values.keys()):
        own = values[task_key]
        rival = rival_values[task_key]
        shared_samples = own.keys() & rival.keys()
        if shared_samples:
            differences[task_key] = {
                sample: own[sample] - rival[sample] for sample in shared_samples
            }
    return differences


def _test_tasks(pair_keys: dict[str, Any], differences: DocumentValues) -> Iterator[dict[str, Any]]:
    """A row for each task."""
    for (calibration, task, metric), by_sample in differences.items():
        test = compute_paired_test([list(by_sample.values())])
        yield {
            **pair_keys,
            "calibration": calibration,
            "task": task,
            "metric": metric,
            **test,
        }


def _test_mean(pair_keys: dict[str, Any], differences: DocumentValues) -> Iterator[dict[str, Any]]:
    """A row for the mean over the tasks with an accuracy, if there are any."""
    accuracies = {
        (calibration, task, metric): by_sample
        for (calibration, task, metric), by_sample in differences.items()
        if metric != "nll"
    }
    if accuracies:
        keys = {"calibration": ALL, "task": ALL, "metric": "accuracy"}
        yield {**pair_keys, **keys, **_test_mean_difference(accuracies)}


def _with_holm(family: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    p_values = [row["p_value"] for row in family]
    for row, p_holm in zip(family, correct_by_holm(p_values), strict=True):
        yield {**row, "p_holm": p_holm}


def _test_mean_difference(differences: DocumentValues) -> PairedTest:
    """Test the mean over tasks.

    A document that was tested under several calibrations counts once: its differences add up.
    """
    by_task: dict[str, dict[int, float]] = {}
    for (_, task, _), by_sample in differences.items():
        summed = by_task.setdefault(task, {})
        for sample, value in by_sample.items():
            share = value / len(by_sample) / len(differences)
            summed[sample] = summed.get(sample, 0.0) + share
    return compute_paired_test(
        [
            np.array(list(by_sample.values())) * len(by_sample) * len(by_task)
            for by_sample in by_task.values()
        ]
    )


def compute_paired_test(differences: Sequence[Sequence[float] | np.ndarray]) -> PairedTest:
    """Test the mean over tasks of the mean difference over documents.

    differences: of each task, those of its documents
    """
    tasks = [np.asarray(task, dtype=float) for task in differences]
    weighted = np.concatenate([task / len(task) / len(tasks) for task in tasks])
    stderr = float(np.sqrt(sum(_variance_of_mean(task) for task in tasks))) / len(tasks)
    third_cumulant = sum(map(_third_cumulant_of_mean, tasks)) / len(tasks) ** 3
    mean = float(weighted.sum())
    below, above = compute_interval(stderr, third_cumulant, len(weighted) - len(tasks))
    return PairedTest(
        difference=mean,
        ci_low=mean - below,
        ci_high=mean + above,
        n_samples=len(weighted),
        n_different=int((weighted != 0).sum()),
        p_value=compute_sign_flip_p_value(weighted),
    )


def compute_interval(stderr: float, third_cumulant: float, degrees: int) -> tuple[float, float]:
    """How far the 95 % interval of a mean reaches below and above it; NaN for a single number.

    third_cumulant: of the mean; 0 where its distribution is symmetric
    degrees: of freedom

    The wider of Student's t and of Hall's transformation of it, which removes its skewness
    [Hall 1992, J. R. Stat. Soc. B 54]: with a = third_cumulant / stderr^3,
    t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 is nearly as normal as t is for normal numbers.
    """
    quantile = float(stats.t.ppf(0.975, degrees)) if degrees > 0 else math.nan
    skewness = third_cumulant / stderr**3 if stderr else 0.0
    if abs(skewness) < 1e-6:
        return quantile * stderr, quantile * stderr
    below = _invert_hall(quantile, skewness)
    above = -_invert_hall(-quantile, skewness)
    return max(quantile, below) * stderr, max(quantile, above) * stderr


def _invert_hall(quantile: float, skewness: float) -> float:
    """The t whose transform is the quantile."""
    return 3 / skewness * (math.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def ratio_interval(ratio: float, stderr: float, repeats: int) -> tuple[float, float]:
    """95 % interval of a geometric mean of `repeats` ratios, by Student's t of their logarithms.

    Times are skewed, which so few of them do not show. With half the degrees of freedom the
    interval also holds for exponential ones; for others it is wider than it need be.
    """
    half_width = float(stats.t.ppf(0.975, timing_degrees(repeats))) * stderr / ratio
    return ratio * math.exp(-half_width), ratio * math.exp(half_width)


def timing_degrees(repeats: int) -> int:
    """Degrees of freedom of an interval over `repeats` timings."""
    return max(1, (repeats - 1) // 2)


def _variance_of_mean(differences: np.ndarray) -> float:
    """The variance of the mean of these differences.

    If answers are right or wrong, all differences have one size or are zero. Few or no differences
    must not make the mean certain, so one document is added that differs in each direction
    [Bonett and Price 2012]; SQL has the same in `paired_stderr`.
    """
    count = len(differences)
    sizes = abs(differences[differences != 0])
    if len(sizes) and not _are_equal(sizes):
        return float(differences.var(ddof=1) / count)
    size = sizes[0] if len(sizes) else 1.0
    sum_of_squares = (differences**2).sum() + 2 * size**2
    mean = differences.sum() / (count + 2)
    return float((sum_of_squares / (count + 2) - mean**2) / (count + 2))


def _third_cumulant_of_mean(differences: np.ndarray) -> float:
    """The third cumulant of the mean of these differences.

    0 for answers that are right or wrong, whose variance allows for it, and for fewer than three.
    """
    count = len(differences)
    sizes = abs(differences[differences != 0])
    if count < 3 or not len(sizes) or _are_equal(sizes):
        return 0.0
    cubes = (differences - differences.mean()) ** 3
    return float(cubes.sum() / ((count - 1) * (count - 2) * count))


def _are_equal(sizes: np.ndarray) -> bool:
    return bool(np.ptp(sizes) <= 1e-9 * sizes.max())


def compute_sign_flip_p_value(differences: np.ndarray) -> float:
    """Two-sided p of a sum if the sign of each of its terms is random.

    Exact where all nonzero terms have one size.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    if _are_equal(abs(nonzero)):
        n_positive = int((nonzero > 0).sum())
        return float(stats.binomtest(n_positive, len(nonzero)).pvalue)
    if len(nonzero) >= MIN_FOR_NORMAL:
        z = abs(nonzero.sum()) / np.sqrt((nonzero**2).sum())
        return float(2 * stats.norm.sf(z))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (N_SIGN_DRAWS, len(nonzero)))
    is_as_far = abs(signs @ nonzero) >= abs(nonzero.sum()) * (1 - 1e-9)
    return float((1 + is_as_far.sum()) / (1 + N_SIGN_DRAWS))


def correct_by_holm(p_values: Iterable[float]) -> list[float]:
    """p values corrected for their number by Holm's method, in the order given."""
    uncorrected = np.array(list(p_values))
    order = np.argsort(uncorrected, kind="stable")
    n_remaining = np.arange(len(uncorrected), 0, -1)
    corrected = np.empty(len(uncorrected))
    corrected[order] = np.minimum(1, np.maximum.accumulate(uncorrected[order] * n_remaining))
    return [float(p_value) for p_value in corrected]
