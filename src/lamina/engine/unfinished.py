"""The batches of a sweep, each run once: a process goes on where an earlier one was killed.

Batches follow from samples, candidates and budget alone. So both processes together give the same numbers, to the last
bit, as one process that was not killed.
"""

from collections.abc import Iterator, Sequence

import torch

from lamina.engine.packing import Line
from lamina.engine.scores import Scores
from lamina.store.timeleft import TimeLeft
from lamina.store.unfinished import Progress


def resumable(
    batches: Sequence[tuple[Line, ...]], scores: Scores, progress: Progress | None
) -> Iterator[tuple[Line, ...]]:
    """The batches that are left, one after the other; `scores` hold the results of the earlier batches.

    The state is saved only between batches: within a batch, sums hold a part of its candidates.
    """
    begun = _restored(scores, progress) if progress else 0
    costs = [len(batch[0].tokens) * len(batch) for batch in batches]
    left = TimeLeft(sum(costs), sum(costs[:begun]))
    for number in range(begun, len(batches)):
        yield batches[number]
        if progress and progress.is_due():
            state = {name: torch.from_numpy(array) for name, array in scores.state().items()}
            progress.save(state, {"batches": number + 1})
        left.step(costs[number])


def _restored(scores: Scores, progress: Progress) -> int:
    """Take in the scores of an earlier process; return how many batches it has measured."""
    saved = progress.load()
    if saved is None:
        return 0
    tensors, facts = saved
    for name, array in scores.state().items():
        array[...] = tensors[name].numpy()
    return int(facts["batches"])
