"""Parameters of which a few are tried every day, and all by `make test-slow`."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(fast_values: Container[Any], values: Iterable[Any]) -> list[Any]:
    """All values, those that are not among `fast_values` marked slow."""
    return [value if value in fast_values else mark_slow(value) for value in values]


def mark_slow(value: Any) -> Any:
    """A parameter, or a tuple of several, that only the slow tests try."""
    parameters = value if isinstance(value, tuple) else (value,)
    return pytest.param(*parameters, marks=pytest.mark.slow)
