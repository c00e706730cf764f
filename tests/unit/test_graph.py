"""What makes a large graph of jobs quick: signatures told once, and no scheduler that looks without end."""

from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser
from snakemake.common import get_function_params, get_input_function_aux_params
from snakemake.scheduling.job_scheduler import JobRateLimiter
from snakemake.settings.types import MaxJobsPerTimespan

from lamina.runtime import graph

DEFAULT = get_argument_parser().get_default("max_jobs_per_timespan")


def test_a_function_keeps_its_signature_and_gives_it_away_at_once() -> None:
    def memory(wildcards: object, input: object, attempt: int = 1) -> int:
        return attempt

    def wrapped(w: object, **more: object) -> int:
        return 2

    held = SimpleNamespace(_file=SimpleNamespace(callable=wrapped))
    rule = SimpleNamespace(
        input=["a file", held], params=[3, None], resources={"mem": SimpleNamespace(_evaluator=memory)}
    )
    graph.tell_signatures([rule])
    assert get_function_params(memory) is get_function_params(memory)
    told = {"input": 1, "attempt": 2, "threads": 3}
    assert get_input_function_aux_params(memory, told) == {"input": 1, "attempt": 2}
    assert get_input_function_aux_params(wrapped, told) == told


@pytest.mark.parametrize(("asked", "stays"), [(DEFAULT, False), ("10/1s", True), ("100/1m", True)])
def test_only_a_limit_of_starts_that_was_asked_for_is_kept(asked: str, stays: bool) -> None:
    limiter = JobRateLimiter(MaxJobsPerTimespan.parse_choice(asked))
    scheduler = SimpleNamespace(job_rate_limiter=limiter)
    graph.look_when_jobs_end(scheduler)
    assert scheduler.job_rate_limiter is (limiter if stays else None)
