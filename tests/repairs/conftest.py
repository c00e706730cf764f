"""Fixtures of tests of repairs."""

from tests.given.repairs import results
from tests.report.conftest import two_models

__all__ = ["results", "two_models"]
