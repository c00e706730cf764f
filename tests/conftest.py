"""What holds for every test."""

from collections.abc import Iterator

import pytest

from lamina import errors


@pytest.fixture(autouse=True)
def no_job_before() -> Iterator[None]:
    """A process of tests is that of many jobs: what one wanted checked at its end, no other checks."""
    yield
    errors._checks.clear()
