"""The one exception a user is meant to read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class LaminaError(Exception):
    """Something the user can mend. The message names what is wrong, where, and what to write instead."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn a `LaminaError` into its message on standard error and exit status 1; a bug keeps its traceback."""
    try:
        yield
    except LaminaError as error:
        sys.exit(f"lamina: {error}")
