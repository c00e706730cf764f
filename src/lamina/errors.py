"""The one exception a user is meant to read."""

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LaminaError(Exception):
    """Something the user can mend. The message names what is wrong, where, and what to write instead."""


@contextmanager
def at(where: str) -> Iterator[None]:
    """Name the place `where` before the message of a `LaminaError` that is raised inside."""
    try:
        yield
    except LaminaError as error:
        raise LaminaError(f"{where}: {error}") from error


_MACHINE = {
    (
        *(
            "MemoryError",
            "OutOfMemoryError",
            "out of memory",
            "not enough memory",
            "llocate memory",
            "bad_alloc",
        ),
        "failed to map segment from shared object",
    ): "memory ran out: the machine's or device's, or a limit such as `ulimit -v`. Run fewer jobs at a time (CORES=1), "
    "write a smaller `sweep: {tokens: ...}` or a smaller dtype, or use a larger machine. (Where a GPU's batches can be "
    "halved, they were: what is left needs shorter samples, or `devices: auto` in the model's entry.)",
    (
        "No space left on device",
        "Disk quota exceeded",
    ): "the disk is full. Make room and start again: what is finished stays.",
}
_checks: list[Callable[[], None]] = []


def at_end(check: Callable[[], None]) -> None:
    """Call `check` when the work inside `explained` is done or has failed. Its errors come before those of the work."""
    _checks.append(check)


def cause(text: str) -> str | None:
    """The meaning of a machine error and what to do, found by its text; None for any other error."""
    return next(
        (meaning for signs, meaning in _MACHINE.items() if any(sign in text for sign in signs)),
        None,
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn a `LaminaError` into its message on standard error and exit status 1; a bug keeps its traceback.

    If memory or the disk ran out, the message says so too. Ctrl-C ends the process with a word. lamina's log messages
    go to standard error, which is the log of a job.
    """
    logger, handler = logging.getLogger("lamina"), logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        try:
            yield
        except Exception as error:
            if not isinstance(error, LaminaError):
                _check()
            raise
        _check()
    except LaminaError as error:
        sys.exit(f"lamina: {error}")
    except KeyboardInterrupt:
        sys.exit("lamina: stopped.")
    except Exception as error:
        if meaning := cause(f"{type(error).__name__}: {error}"):
            traceback.print_exc()
            sys.exit(f"lamina: {meaning}")
        raise
    finally:
        logger.removeHandler(handler)


def _check() -> None:
    while _checks:
        _checks.pop()()
