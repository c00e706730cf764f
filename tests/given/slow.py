"""Parameters of which a few are tried every day, and all by `make test-slow`."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_but(fast: Container[Any], values: Iterable[Any]) -> list[Any]:
    """The values; those that are not among `fast` are marked slow."""
    return [value if value in fast else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.slow)
