"""Whether two numbers from different runs differ, as if their samples were independent."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from scipy import stats

from lamina_workflow.report.paired_tests import DifferenceTest, timing_degrees

SMALLEST_STDERR = 1e-300  # for a difference without any error, so that its p is 0


@dataclass(frozen=True)
class MeasuredNumber:
    """A number of a table with its error: a 95 % interval, a standard error, or neither."""

    number: str  # identifies it: the variant and task, or the calibration and unit
    metric: str
    value: float
    n_samples: int
    higher_is_better: bool | None  # None if neither direction is better
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    test_version: str | None = None  # version of the task and of its few-shot examples


class _Estimate(NamedTuple):
    """A number on the scale of its test, and how far its 95 % interval reaches."""

    value: float
    below: float
    above: float
    degrees: int  # of freedom


class _DifferenceError(NamedTuple):
    """The error of a difference on one of its sides."""

    half_width: float  # of the 95 % interval
    stderr: float
    degrees: float  # of freedom, by Welch's formula


def compare_independent(
    first: MeasuredNumber, second: MeasuredNumber, are_time_ratios: bool
) -> DifferenceTest | None:
    """Test the difference `second - first` by Welch's t; None if an error is unknown.

    Each number contributes the side of its interval that faces the other number, so the interval
    of the difference may be asymmetric [Zou and Donner 2008]. Ratios of times are compared by
    their logarithms.
    """
    first_estimate = _estimate(first, are_time_ratios)
    second_estimate = _estimate(second, are_time_ratios)
    if first_estimate is None or second_estimate is None:
        return None

    difference = second_estimate.value - first_estimate.value
    degrees = (first_estimate.degrees, second_estimate.degrees)
    error_below = _combine_errors((first_estimate.above, second_estimate.below), degrees)
    error_above = _combine_errors((first_estimate.below, second_estimate.above), degrees)
    ci_low = difference - error_below.half_width
    ci_high = difference + error_above.half_width

    facing_zero = error_below if difference > 0 else error_above
    p_value = 1.0
    if difference:
        t = abs(difference) / facing_zero.stderr
        p_value = float(2 * stats.t.sf(t, facing_zero.degrees))
    if are_time_ratios:
        ci_low = first.value * math.expm1(ci_low)
        difference = first.value * math.expm1(difference)
        ci_high = first.value * math.expm1(ci_high)
    return DifferenceTest(difference=difference, ci_low=ci_low, ci_high=ci_high, p_value=p_value)


def _estimate(number: MeasuredNumber, is_time_ratio: bool) -> _Estimate | None:
    """The number on the scale of its test; None if its error is unknown.

    If all samples agree, the interval is as wide as if one more sample might differ.
    """
    n_samples = number.n_samples
    if number.value is None or not abs(number.value) < float("inf"):
        return None
    if not n_samples or n_samples < 2:
        return None

    degrees = timing_degrees(n_samples) if is_time_ratio else n_samples - 1
    if number.ci_low is not None and number.ci_high is not None:
        reach_below = number.value - number.ci_low
        reach_above = number.ci_high - number.value
    elif number.stderr is not None:
        stderr = number.stderr / number.value if is_time_ratio else number.stderr
        reach_below = reach_above = float(stats.t.ppf(0.975, degrees)) * stderr
    else:
        return None

    value = math.log(number.value) if is_time_ratio else number.value
    least_reach = 1 / (n_samples + 1) if max(reach_below, reach_above) == 0 else 0.0
    return _Estimate(value, max(reach_below, least_reach), max(reach_above, least_reach), degrees)


def _combine_errors(half_widths: tuple[float, float], degrees: tuple[int, int]) -> _DifferenceError:
    """The error of a difference, from the half widths of its numbers' 95 % intervals."""
    stderrs = [
        half_width / float(stats.t.ppf(0.975, n))
        for half_width, n in zip(half_widths, degrees, strict=True)
    ]
    variance = sum(stderr**2 for stderr in stderrs)
    if not variance:
        return _DifferenceError(0.0, SMALLEST_STDERR, 1.0)
    welch_degrees = variance**2 / sum(
        stderr**4 / n for stderr, n in zip(stderrs, degrees, strict=True)
    )
    half_width = float(stats.t.ppf(0.975, welch_degrees)) * variance**0.5
    return _DifferenceError(half_width, variance**0.5, welch_degrees)
