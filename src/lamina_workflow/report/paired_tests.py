"""Which of two selectors is better at equal size and repair: paired tests on the documents of both.

A test flips the signs of the documents' differences at random: both signs are equally likely if the
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

# With this many terms, a sum of flipped differences is nearly normal; with fewer, signs are drawn.
MIN_FOR_NORMAL = 41  # differences; the signs of fewer are all tried
# An interval of a ratio is useless if its ends differ by more than this factor.
NOISY = 3
ALL = "all"  # the calibration and the task of a mean over tasks

# The tested values, one per document, higher being better, in the main metric of an own task.
VALUES = """
SELECT s.model, s.calibration, s.task, if(s.metric = 'perplexity', 'nll', s.metric) AS metric,
    s.removed, coalesce(r.layers, s.removed) AS layers, s.repair, s.healing, s.selector,
    coalesce(any_value(r.chosen_repair), 'none') AS chosen_repair,
    list(d.sample ORDER BY d.sample) AS samples,
    list(if(s.higher_is_better, d.value, -d.value) ORDER BY d.sample) AS values
FROM scores AS s
JOIN benchmark_samples AS d USING (model, calibration, selector, removed, repair, healing, task)
LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
WHERE s.own AND s.selector <> 'none' AND d.metric = if(s.metric = 'perplexity', 'nll', s.metric)
GROUP BY ALL HAVING bool_and(isfinite(d.value)) ORDER BY ALL
"""
# Stands for the repair with which each plan was chosen.
AS_CHOSEN = "as chosen"
CELL = ("model", "removed", "repair", "healing")
SIZE = "layers"  # n attentions alone are a smaller cut than n layers

TaskKey = tuple[str, str, str]  # calibration, task, metric
DocumentValues = dict[TaskKey, dict[int, float]]
"""The value of each document of each task, or its difference between two selectors."""


class DifferenceTest(TypedDict):
    """A difference, its 95 % interval and the two-sided p value of no difference."""

    difference: float
    ci_low: float
    ci_high: float
    p_value: float


class PairedTest(DifferenceTest):
    """A difference over documents on which both variants were tested."""

    n_samples: int  # documents
    n_different: int  # documents with a difference


def compare_selectors(connection: duckdb.DuckDBPyConnection) -> Iterator[dict[str, Any]]:
    """Rows of table `comparisons`, from views `scores`, `benchmark_samples` and `removal_order`.

    There are no rows for a single selector, nor for two that remove different kinds of units.
    """
    value_rows = query_rows(connection, VALUES)
    value_rows += _take_as_chosen(value_rows)
    for (*cell, _), cell_rows in group_rows(value_rows, *CELL, SIZE).items():
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


def _take_as_chosen(value_rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of each plan with the repair that its selector chose it with.

    There are none for sizes at which all plans were chosen without a repair.
    """
    unhealed_rows = [row for row in value_rows if row["healing"] == "none"]
    taken_rows: list[dict[str, Any]] = []
    for size_rows in group_rows(unhealed_rows, "model", "removed", SIZE).values():
        if any(row["chosen_repair"] != "none" for row in size_rows):
            taken_rows += [
                {**row, "repair": AS_CHOSEN}
                for row in size_rows
                if row["repair"] == row["chosen_repair"]
            ]
    return taken_rows


def _group_values(value_rows: Iterable[Mapping[str, Any]]) -> dict[str, DocumentValues]:
    """Values of documents, by selector."""
    values_by_selector: dict[str, DocumentValues] = {}
    for row in value_rows:
        task_key = (row["calibration"], row["task"], row["metric"])
        value_by_sample = dict(zip(row["samples"], row["values"], strict=True))
        values_by_selector.setdefault(row["selector"], {})[task_key] = value_by_sample
    return values_by_selector


def _subtract_values(values: DocumentValues, rival_values: DocumentValues) -> DocumentValues:
    """The difference on each document that both were tested on, without empty tasks."""
    differences: DocumentValues = {}
    for task_key in sorted(values.keys() & rival_values.keys()):
        own_values = values[task_key]
        rival_task_values = rival_values[task_key]
        shared_samples = own_values.keys() & rival_task_values.keys()
        if shared_samples:
            differences[task_key] = {
                sample: own_values[sample] - rival_task_values[sample] for sample in shared_samples
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
    accuracy_differences = {
        (calibration, task, metric): by_sample
        for (calibration, task, metric), by_sample in differences.items()
        if metric != "nll"
    }
    if accuracy_differences:
        mean_keys = {"calibration": ALL, "task": ALL, "metric": "accuracy"}
        yield {**pair_keys, **mean_keys, **_test_mean_difference(accuracy_differences)}


def _with_holm(family: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    p_values = [row["p_value"] for row in family]
    for row, p_holm in zip(family, correct_by_holm(p_values), strict=True):
        yield {**row, "p_holm": p_holm}


def _test_mean_difference(differences: DocumentValues) -> PairedTest:
    """Test the mean over tasks.

    A document that was tested under several calibrations counts once: its differences are summed.
    """
    shares_by_task: dict[str, dict[int, float]] = {}
    for (_, task, _), by_sample in differences.items():
        task_shares = shares_by_task.setdefault(task, {})
        for sample, value in by_sample.items():
            document_share = value / len(by_sample) / len(differences)
            task_shares[sample] = task_shares.get(sample, 0.0) + document_share
    return compute_paired_test(
        [
            np.array(list(by_sample.values())) * len(by_sample) * len(shares_by_task)
            for by_sample in shares_by_task.values()
        ]
    )


def compute_paired_test(differences: Sequence[Sequence[float] | np.ndarray]) -> PairedTest:
    """Test the mean over tasks of the mean difference over documents.

    differences: for each task, the differences of its documents
    """
    task_differences = [np.asarray(task, dtype=float) for task in differences]
    weighted_differences = np.concatenate(
        [task / len(task) / len(task_differences) for task in task_differences]
    )
    stderr = float(np.sqrt(sum(_variance_of_mean(task) for task in task_differences))) / len(
        task_differences
    )
    third_cumulant = (
        sum(map(_third_cumulant_of_mean, task_differences)) / len(task_differences) ** 3
    )
    mean_difference = float(weighted_differences.sum())
    reach_below, reach_above = compute_interval(
        stderr, third_cumulant, len(weighted_differences) - len(task_differences)
    )
    return PairedTest(
        difference=mean_difference,
        ci_low=mean_difference - reach_below,
        ci_high=mean_difference + reach_above,
        n_samples=len(weighted_differences),
        n_different=int((weighted_differences != 0).sum()),
        p_value=compute_sign_flip_p_value(weighted_differences),
    )


def compute_interval(stderr: float, third_cumulant: float, degrees: int) -> tuple[float, float]:
    """How far the 95 % interval of a mean reaches below and above it; NaN for a single number.

    third_cumulant: that of the mean; 0 if its distribution is symmetric
    degrees: degrees of freedom

    The wider one of Student's t interval and that of Hall's transformation of t, which removes its
    skewness [Hall 1992, J. R. Stat. Soc. B 54]: with a = third_cumulant / stderr^3,
    t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 is nearly as normal as t is for normal numbers.
    """
    quantile = float(stats.t.ppf(0.975, degrees)) if degrees > 0 else math.nan
    skewness = third_cumulant / stderr**3 if stderr else 0.0
    if abs(skewness) < 1e-6:
        return quantile * stderr, quantile * stderr
    reach_below = _invert_hall(quantile, skewness)
    reach_above = -_invert_hall(-quantile, skewness)
    return max(quantile, reach_below) * stderr, max(quantile, reach_above) * stderr


def _invert_hall(quantile: float, skewness: float) -> float:
    """The t that Hall's transformation maps to the quantile."""
    return 3 / skewness * (math.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def ratio_interval(ratio: float, stderr: float, repeats: int) -> tuple[float, float]:
    """95 % interval of a geometric mean of `repeats` ratios, by Student's t of their logarithms.

    Times are skewed, which a small number of them does not show. With half the degrees of freedom,
    the interval is valid even for exponential times; for others it is wider than necessary.
    """
    half_width = float(stats.t.ppf(0.975, timing_degrees(repeats))) * stderr / ratio
    return ratio * math.exp(-half_width), ratio * math.exp(half_width)


def timing_degrees(repeats: int) -> int:
    """Degrees of freedom of an interval over `repeats` timings."""
    return max(1, (repeats - 1) // 2)


def _variance_of_mean(differences: np.ndarray) -> float:
    """The variance of the mean of these differences.

    If answers are right or wrong, all nonzero differences have one size. Few or no differences must
    not make the mean certain, so one document is added that differs in each direction
    [Bonett and Price 2012]. `paired_stderr` does the same in SQL.
    """
    n_documents = len(differences)
    difference_sizes = abs(differences[differences != 0])
    if len(difference_sizes) and not _are_equal(difference_sizes):
        return float(differences.var(ddof=1) / n_documents)
    assumed_size = difference_sizes[0] if len(difference_sizes) else 1.0
    sum_of_squares = (differences**2).sum() + 2 * assumed_size**2
    shrunk_mean = differences.sum() / (n_documents + 2)
    return float((sum_of_squares / (n_documents + 2) - shrunk_mean**2) / (n_documents + 2))


def _third_cumulant_of_mean(differences: np.ndarray) -> float:
    """The third cumulant of the mean of these differences.

    0 for fewer than three, and for answers that are right or wrong, whose variance allows for it.
    """
    n_documents = len(differences)
    difference_sizes = abs(differences[differences != 0])
    if n_documents < 3 or not len(difference_sizes) or _are_equal(difference_sizes):
        return 0.0
    cubed_deviations = (differences - differences.mean()) ** 3
    return float(cubed_deviations.sum() / ((n_documents - 1) * (n_documents - 2) * n_documents))


def _are_equal(sizes: np.ndarray) -> bool:
    return bool(np.ptp(sizes) <= 1e-9 * sizes.max())


def compute_sign_flip_p_value(differences: np.ndarray) -> float:
    """Two-sided p of a sum if each of its terms has a random sign.

    Exact if all nonzero terms have one size, or there are fewer than MIN_FOR_NORMAL.
    """
    nonzero_differences = differences[differences != 0]
    if not len(nonzero_differences):
        return 1.0
    if _are_equal(abs(nonzero_differences)):
        n_positive = int((nonzero_differences > 0).sum())
        return float(stats.binomtest(n_positive, len(nonzero_differences)).pvalue)
    if len(nonzero_differences) >= MIN_FOR_NORMAL:
        z = abs(nonzero_differences.sum()) / np.sqrt((nonzero_differences**2).sum())
        return float(2 * stats.norm.sf(z))
    # Every sum is one of the first half and one of the second: 2^20 of each, not 2^40.
    middle = len(nonzero_differences) // 2
    first_sums = _list_signed_sums(nonzero_differences[:middle])
    second_sums = np.sort(_list_signed_sums(nonzero_differences[middle:]))
    needed_sums = abs(nonzero_differences.sum()) * (1 - 1e-9) - first_sums
    n_as_far = (len(second_sums) - np.searchsorted(second_sums, needed_sums)).sum()
    return min(1.0, 2 * float(n_as_far) / len(first_sums) / len(second_sums))


def _list_signed_sums(terms: np.ndarray) -> np.ndarray:
    """The sum of the terms for each choice of their signs."""
    sums = np.zeros(1)
    for term in terms:
        sums = np.concatenate([sums - term, sums + term])
    return sums


def correct_by_holm(p_values: Iterable[float]) -> list[float]:
    """p values corrected for their number by Holm's method, in the given order."""
    uncorrected_p_values = np.array(list(p_values))
    ascending_order = np.argsort(uncorrected_p_values, kind="stable")
    n_remaining = np.arange(len(uncorrected_p_values), 0, -1)
    corrected_p_values = np.empty(len(uncorrected_p_values))
    corrected_p_values[ascending_order] = np.minimum(
        1, np.maximum.accumulate(uncorrected_p_values[ascending_order] * n_remaining)
    )
    return [float(p_value) for p_value in corrected_p_values]
