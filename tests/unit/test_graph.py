"""What the driver of a run asks of Snakemake's scheduler."""

from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser
from snakemake.scheduling.job_scheduler import JobRateLimiter
from snakemake.settings.types import MaxJobsPerTimespan

from lamina.workflow import graph

DEFAULT = get_argument_parser().get_default("max_jobs_per_timespan")


@pytest.mark.parametrize(("asked", "stays"), [(DEFAULT, False), ("10/1s", True), ("100/1m", True)])
def test_only_a_limit_that_was_asked_for_is_kept(asked: str, stays: bool) -> None:
    limiter = JobRateLimiter(MaxJobsPerTimespan.parse_choice(asked))
    scheduler = SimpleNamespace(job_rate_limiter=limiter)
    graph.look_when_jobs_end(scheduler)
    assert scheduler.job_rate_limiter is (limiter if stays else None)


def test_no_limit_is_no_limit() -> None:
    scheduler = SimpleNamespace(job_rate_limiter=None)
    graph.look_when_jobs_end(scheduler)
    assert scheduler.job_rate_limiter is None
