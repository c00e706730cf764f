"""Forecast a study with fewer samples, to choose the largest number that fits into a given time.

No part of the study runs: a rate is measured on this machine, and work is counted from the model's
manifest, the tokenised calibrations and the tests, as for `lamina plan`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lamina import paths
from lamina.errors import LaminaError
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost import forecast
from lamina_workflow.cost.estimate import count_works
from lamina_workflow.runtime import devices
from lamina_workflow.study import requests


class SizeForecast(NamedTuple):
    """The time of a study if at most `n_samples` samples of each kind choose."""

    n_samples: int
    seconds: float


class MachineSpeed(NamedTuple):
    """How fast this machine does the jobs of a study."""

    rate: float
    """FLOP/s of a sweep."""
    start_seconds: forecast.StartSeconds
    n_parallel: int
    """Number of jobs that run at a time."""


def measure_machine(cores: str) -> MachineSpeed:
    """Measure this machine on the study in the current folder, for some 20 seconds.

    cores: The cores that a run may use: a number, or `all`.
    """
    n_cores = forecast.count_cores(cores)
    rate = forecast.measure_rate(Path(paths.RESULTS), n_cores, always=True)
    assert rate is not None  # every study has a calibration
    n_gpus = len(devices.list_devices(os.environ))
    n_parallel = n_gpus or min(forecast.N_JOBS_ON_CPU, n_cores)
    return MachineSpeed(rate, forecast.measure_start(), n_parallel)


def forecast_sizes(
    configurations: Mapping[int, Configuration], n_jobs: int, machine: MachineSpeed
) -> list[SizeForecast]:
    """The time of the study in the current folder, for each number of samples.

    configurations: By the number of samples. The calibration files hold the largest number; for
        smaller ones, only part of their samples is counted.
    n_jobs: Number of jobs in a run.
    """
    forecasts: list[SizeForecast] = []
    for n_samples, config in configurations.items():
        counted = count_works(
            config,
            [paths.manifest(model) for model in config.models],
            [paths.calibration(*names) for names in requests.list_calibrations(config)],
            [
                f"{paths.RESULTS}/tasks/{name}.parquet"
                for name in [*config.benchmarks.tasks, *config.benchmarks.perplexity]
            ],
            n_samples,
        )
        works = list(counted)
        n_computing = min(n_jobs, sum(work.cost.jobs for work in works))
        seconds = sum(work.cost.flops for work in works) / machine.rate
        seconds += n_computing * machine.start_seconds.with_model
        seconds += (n_jobs - n_computing) * machine.start_seconds.without_model
        longest = max(work.cost.flops / work.cost.jobs for work in works) / machine.rate
        taken_seconds = forecast.run_beside(seconds, longest, machine.n_parallel)
        forecasts.append(SizeForecast(n_samples, taken_seconds))
    return forecasts


def choose_size(forecasts: Sequence[SizeForecast], minutes: float) -> SizeForecast:
    """The largest number of samples that fits into the time.

    Raises LaminaError if none does; the message names the time for the smallest.
    """
    for size in sorted(forecasts, reverse=True):
        if size.seconds <= 60 * minutes:
            return size
    smallest = min(forecasts)
    n_minutes = math.ceil(smallest.seconds / 60)
    samples = "so few questions and documents"
    if len(forecasts) > 1:
        samples = f"{smallest.n_samples} questions and documents, the fewest that can choose"
    raise LaminaError(
        f"--minutes {minutes:g}: with {samples}, this study takes about {n_minutes} min here. Write "
        f"--minutes {n_minutes} or more, or take a smaller model."
    )


def describe_choice(
    forecasts: Sequence[SizeForecast],
    chosen: SizeForecast,
    minutes: float,
    n_given: int | None = None,
) -> str:
    """The chosen size, the time it takes, and the time of the next larger size.

    n_given: Number of available questions or documents, the larger of the two; None if not known.
    """
    samples = f"at most {chosen.n_samples} questions and documents"
    if len(forecasts) == 1 or (n_given is not None and n_given <= chosen.n_samples):
        samples = "all questions and documents that are not held out for testing"
    sentence = (
        f"--minutes {minutes:g}: {samples} choose. By the forecast, this takes about "
        f"{forecast.format_duration(chosen.seconds)} here"
    )
    larger = [size for size in forecasts if size.n_samples > chosen.n_samples]
    if not larger:
        return f"{sentence}."
    next_size = min(larger)
    duration = forecast.format_duration(next_size.seconds)
    return f"{sentence}; {next_size.n_samples} would take {duration}."
