"""What makes a large graph of jobs quick to plan and to run."""

import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from snakemake.common import overwrite_function_params


def tell_signatures(rules: Iterable[Any]) -> None:
    """Write down what the functions of rules take, which Snakemake would find out anew at each of their calls."""
    for rule in rules:
        given = [*rule.input, *rule.params, *(resource._evaluator for resource in rule.resources.values())]
        for place in given:
            function = getattr(getattr(place, "_file", place), "callable", place)
            if isinstance(function, FunctionType):
                overwrite_function_params(function, inspect.signature(function).parameters)


def look_when_jobs_end(scheduler: Any) -> None:
    """Let the scheduler look for jobs to start when one has ended, and not also once a second for each that ever has.

    Snakemake's own limit, 100 starts a second, which no run of these jobs reaches, makes each look plan another one a
    second later, without end: as often a second as jobs have ended. A limit that was asked for stays.
    """
    limit = scheduler.job_rate_limiter
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        scheduler.job_rate_limiter = None
