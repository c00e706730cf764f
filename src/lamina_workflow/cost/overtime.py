"""Why a run took longer than `lamina prune --minutes` allowed, as far as its records say."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lamina_workflow.cost.forecast import format_duration

STAGES_IN_WORDS = {
    "capture": "reading the streams of layers",
    "sweep": "scoring single layers",
    "search": "comparing sets of layers",
    "repair": "fitting repairs",
    "benchmark": "testing and timing variants",
}
"""The stages of a study of `lamina prune` that compute with a model."""
RULES_BY_STAGE = {
    "capture": ("capture_activations",),
    "sweep": ("sweep_units",),
    "search": ("search_plans",),
    "repair": ("fit_patch",),
    "benchmark": ("benchmark_task", "benchmark_perplexity", "benchmark_efficiency"),
}
LEAST_SHARE = 0.2  # of the time over, for a stage to be named as a cause
BUSY_FACTOR = 1.5  # processes that compute or wait, by the number of cores


def sum_by_stage(jobs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of the jobs of each stage, from rows of table `jobs`."""
    seconds_by_rule: dict[str, float] = {}
    for job in jobs:
        if job["seconds"] is not None:
            rule = job["rule"]
            seconds_by_rule[rule] = seconds_by_rule.get(rule, 0.0) + job["seconds"]
    return {
        stage: sum(seconds_by_rule.get(rule, 0.0) for rule in rules)
        for stage, rules in RULES_BY_STAGE.items()
    }


def describe_overtime(
    minutes: float,
    seconds: float,
    forecast_by_stage: Mapping[str, float],
    taken_by_stage: Mapping[str, float],
    load: float,
) -> list[str]:
    """Lines about a run that took longer than it may; none if it did not.

    minutes: That it may take.
    seconds: That it took.
    forecast_by_stage, taken_by_stage: Seconds of the jobs of each stage, those that ran at the same
        time counted in full. Empty where there was no forecast.
    load: Processes that computed or waited, of the last quarter of an hour.
    """
    seconds_over = seconds - 60 * minutes
    if seconds_over <= 0:
        return []
    lines = [
        f"over time     The run took {format_duration(seconds)}, "
        f"{format_duration(seconds_over)} more than --minutes {minutes:g}."
    ]
    excess_by_stage = {
        stage: taken_by_stage.get(stage, 0.0) - forecast
        for stage, forecast in forecast_by_stage.items()
        if stage in STAGES_IN_WORDS
    }
    for stage in sorted(excess_by_stage, key=excess_by_stage.__getitem__, reverse=True):
        if excess_by_stage[stage] >= LEAST_SHARE * seconds_over:
            lines.append(
                f"              For {STAGES_IN_WORDS[stage]}, "
                f"{format_duration(forecast_by_stage[stage])} were forecast, and it took "
                f"{format_duration(taken_by_stage[stage])}."
            )
    n_cores = os.cpu_count() or 1
    if load > BUSY_FACTOR * n_cores:
        lines.append(
            f"              The machine was busy: at the end, {load:.1f} processes shared its "
            f"{n_cores} cores."
        )
    return lines
