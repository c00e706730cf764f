"""The one exception meant for users, and how a program ends with it."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class LaminaError(Exception):
    """An error that the user can correct.

    The message says what is wrong, where, and what to write instead.
    """


@contextmanager
def located_at(where: str) -> Iterator[None]:
    """Put the location `where` before the message of a `LaminaError` that is raised inside."""
    try:
        yield
    except LaminaError as error:
        raise LaminaError(f"{where}: {error}") from error


# Parts of errors from libraries and the system when memory ran out or the disk is full.
_SIGNS_OF_MEMORY = (
    "MemoryError",
    "OutOfMemoryError",
    "out of memory",
    "not enough memory",
    "llocate memory",
    "bad_alloc",
    "failed to map segment from shared object",
)
_SIGNS_OF_DISK = ("No space left on device", "Disk quota exceeded")
_OUT_OF_MEMORY = (
    "memory ran out on the machine or the device, or reached a limit such as `ulimit -v`. Run "
    "fewer jobs at a time (CORES=1), write a smaller `sweep: {tokens: ...}` or a smaller dtype, or "
    "use a larger machine. (On a GPU, batches were already halved where possible. What remains are "
    "shorter samples, or `devices: auto` in the model's entry.)"
)
_DISK_FULL = "the disk is full. Free some space and start again: finished work is kept."


def explain_machine_error(text: str) -> str | None:
    """The meaning of a machine error and the remedy, found by its text; None for another error."""
    if any(sign in text for sign in _SIGNS_OF_MEMORY):
        return _OUT_OF_MEMORY
    if any(sign in text for sign in _SIGNS_OF_DISK):
        return _DISK_FULL
    return None


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn a `LaminaError` into its message on standard error and exit status 1.

    Any other error keeps its traceback; if memory or the disk ran out, the message says so too.
    Ctrl-C ends the process with a word. lamina's log messages go to standard error, which is the
    log of a job.
    """
    logger = logging.getLogger("lamina")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except LaminaError as error:
        sys.exit(f"lamina: {error}")
    except KeyboardInterrupt:
        sys.exit("lamina: stopped.")
    except Exception as error:
        meaning = explain_machine_error(f"{type(error).__name__}: {error}")
        if meaning is None:
            raise
        traceback.print_exc()
        sys.exit(f"lamina: {meaning}")
    finally:
        logger.removeHandler(handler)
