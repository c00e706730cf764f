"""The batches of a sweep, each run once: a process goes on where an earlier one was killed.

Batches follow from samples, candidates and budget alone. So both together end with the numbers, to the last bit, of a
process that nobody killed.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from lamina.resume import Progress
from lamina.sweep.packing import Line
from lamina.sweep.scores import Scores
from lamina.timeleft import TimeLeft

SECONDS = 30.0  # between two savings


@contextmanager
def resumable(
    batches: Sequence[tuple[Line, ...]], scores: Scores, progress: Progress | None
) -> Iterator[Iterator[tuple[Line, ...]]]:
    """The batches that are left, one after the other; of those before them `scores` hold what was measured.

    What is measured so far is saved every half minute and, where that can be, when the work is broken off.
    """
    begun = _restored(scores, progress) if progress else 0
    costs = [len(batch[0].tokens) * len(batch) for batch in batches]
    left, saved, done = TimeLeft(sum(costs), sum(costs[:begun])), time.monotonic(), begun

    def save() -> None:
        if progress and done > begun:
            state = {name: torch.from_numpy(array) for name, array in scores.state().items()}
            progress.save(state, {"batches": done})

    def going() -> Iterator[tuple[Line, ...]]:
        nonlocal saved, done
        for number in range(begun, len(batches)):
            yield batches[number]
            done = number + 1
            left.step(costs[number])
            if time.monotonic() - saved >= SECONDS:
                save()
                saved = time.monotonic()

    try:
        yield going()
    except BaseException:
        save()
        raise


def _restored(scores: Scores, progress: Progress) -> int:
    """How many batches an earlier process has measured, after its scores were taken in."""
    found = progress.load()
    if found is None:
        return 0
    tensors, facts = found
    for name, array in scores.state().items():
        array[...] = tensors[name].numpy()
    return int(facts["batches"])
