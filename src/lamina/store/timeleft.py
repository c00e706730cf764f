"""How far a job is, in its log once a minute: `38 %, about 7 min left`."""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60.0  # between two lines of a job

_logger = logging.getLogger(__name__)
_spans = [
    (0.0, 1.0)
]  # the shares of the job where the work at hand begins and ends; the last one holds


@contextmanager
def span(begin: float, end: float) -> Iterator[None]:
    """While open, work that says how far it is is the part of the job between these shares."""
    _spans.append((begin, end))
    try:
        yield
    finally:
        _spans.pop()


class TimeLeft:
    """The time that work has left: it is `total` in any unit, and an earlier process has done `done` of it."""

    def __init__(self, total: float, done: float = 0.0) -> None:
        self.total, self._before, self._done = total, done, done
        self._begun = self._said = time.monotonic()

    def step(self, amount: float) -> None:
        """Note that this much more is done."""
        self._done += amount
        now = time.monotonic()
        if now - self._said >= SECONDS and self._before < self._done < self.total:
            self._said = now
            left = (now - self._begun) * (self.total - self._done) / (self._done - self._before)
            begin, end = _spans[-1]
            share = begin + (end - begin) * self._done / self.total
            # What comes behind this part takes as long for its share as the rest of this part.
            left *= (1 - share) / (end - share)
            _logger.info("%d %%, about %s left", 100 * share, spoken(left))


def tracked(items: Iterable[T], count: int) -> Iterator[T]:
    """The `count` items one after the other; each is done when the next one is asked for."""
    left = TimeLeft(count)
    for item in items:
        yield item
        left.step(1)


def spoken(seconds: float) -> str:
    """A time in the unit that a person would use."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
