"""Report every few seconds that a long step is still running."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_SECONDS = 10.0


@contextmanager
def saying_what_goes_on(step: str) -> Iterator[None]:
    """Write a step to standard error and, while it lasts, how long it has taken.

    On a terminal, one line is overwritten again and again.
    """
    is_over = threading.Event()
    begin = "\r" if sys.stderr.isatty() else "\n"
    start_time = time.monotonic()
    print(f"{step} …", end="", file=sys.stderr, flush=True)

    def write_seconds() -> None:
        while not is_over.wait(LOOK_SECONDS):
            seconds = time.monotonic() - start_time
            print(f"{begin}{step} … {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    writer = threading.Thread(target=write_seconds, daemon=True)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()
        print(file=sys.stderr, flush=True)
