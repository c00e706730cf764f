"""Changes of Snakemake that make a large graph of jobs quick to plan and to run."""

import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from snakemake.common import overwrite_function_params


def tell_signatures(rules: Iterable[Any]) -> None:
    """Write down the parameters of the functions of rules, so that Snakemake need not inspect them at each call."""
    for rule in rules:
        values = [*rule.input, *rule.params, *(resource._evaluator for resource in rule.resources.values())]
        for value in values:
            function = getattr(getattr(value, "_file", value), "callable", value)
            if isinstance(function, FunctionType):
                overwrite_function_params(function, inspect.signature(function).parameters)


def look_when_jobs_end(scheduler: Any) -> None:
    """Let the scheduler look for jobs to start only when one has ended.

    No run of these jobs reaches Snakemake's own limit of 100 starts a second. But with this limit each look plans
    another look a second later, without end: there are as many looks a second as jobs have ended. A limit that the user
    asked for stays.
    """
    limit = scheduler.job_rate_limiter
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        scheduler.job_rate_limiter = None
