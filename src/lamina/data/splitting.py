"""The one way in which lamina splits samples into those that something is fitted on and those that judge it.

It draws documents, never samples. A calibration may hold a document many times, and `data:` may add it once more, cut
at another length. A fit on one copy has seen all copies. So two samples are one document if their token sequences
(context and right answer) are equal, or if one begins with the other.
"""

import random
from collections.abc import Callable, Sequence

from lamina.errors import LaminaError

Sequences = Sequence[Sequence[int]]
"""Token ids of the samples of one calibration."""


def documents(sources: Sequence[Sequences]) -> list[list[int]]:
    """The document of every sample of every source, numbered from 0 over all sources in order of appearance."""
    shortest: dict[tuple[int, ...], tuple[int, ...]] = {}
    first: tuple[int, ...] | None = None
    # In sorted order, all sequences that begin with a sequence follow right behind it.
    for sequence in sorted({tuple(sample) for sequences in sources for sample in sequences}):
        if first is None or sequence[: len(first)] != first:
            first = sequence
        shortest[sequence] = first
    number: dict[tuple[int, ...], int] = {}
    return [
        [number.setdefault(shortest[tuple(sample)], len(number)) for sample in sequences]
        for sequences in sources
    ]


def parts(
    sources: Sequence[Sequences],
    sizes: Callable[[int], Sequence[int]],
    seed: int,
    least: int,
    purpose: str,
) -> list[list[int]]:
    """The part, from 0, of every sample of every source. All copies of a document share one part.

    sizes: Maps the number of documents of a source to the number for each part; these add up to the former. If sources
        share documents, they are met as closely as possible.
    seed: Seed of the draws. The draws from one source do not depend on the others if they share no documents.
    least: The least number of documents of every source, 2 or more.
    purpose: What needs the parts, for the message.

    Raises LaminaError if a source has fewer documents, or shares so many with others that one of its parts would be
    empty.
    """
    numbered = documents(sources)
    part: dict[int, int] = {}
    # The smallest source first, since its parts are the easiest to leave empty.
    for source in sorted(numbered, key=lambda numbers: len(set(numbers))):
        different = list(dict.fromkeys(source))
        if len(different) < least:
            raise LaminaError(
                f"{purpose}, and needs at least {least} different documents for that. A calibration has "
                f"{len(different)}, in samples: {len(source)}. Copies count once, and so does a text with one that "
                "begins it. Raise the calibration's limit, or take one with other documents."
            )
        wanted = sizes(len(different))
        left = list(wanted)
        for document in different:
            if document in part:
                left[part[document]] -= 1
        new = [document for document in different if document not in part]
        random.Random(seed).shuffle(new)
        for document in new:
            part[document] = max(range(len(left)), key=lambda at: left[at] / wanted[at])
            left[part[document]] -= 1
        if len({part[document] for document in different}) < len(wanted):
            raise LaminaError(
                f"{purpose}, and one of its calibrations has its {len(different)} documents in common with others, so "
                "that none is left for one side. Give that calibration more documents, or leave it out."
            )
    return [[part[document] for document in source] for source in numbered]


def held_out(
    sources: Sequence[Sequences], share: float, seed: int, purpose: str, least: int = 2
) -> list[list[bool]]:
    """Whether each sample of each source is held out: a `share` of its documents, at least one, and never all.

    The other arguments and the errors are those of `parts`.
    """

    def sizes(count: int) -> tuple[int, int]:
        held = min(max(1, round(share * count)), count - 1)
        return count - held, held

    return [
        [bool(part) for part in source] for source in parts(sources, sizes, seed, least, purpose)
    ]
