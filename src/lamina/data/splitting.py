"""The one way in which samples are split, into those that something is fitted on and those that judge it.

What is drawn are documents, never samples. A calibration may hold a document many times, and `data:` may bring it once
more, cut at another length; whoever was fitted on one copy has seen all of them. So two samples are one document if
their token sequences (context and right answer) are equal, or if one begins with the other.
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
    # Sorted, what begins with a sequence follows right behind it.
    for sequence in sorted({tuple(each) for sequences in sources for each in sequences}):
        if first is None or sequence[: len(first)] != first:
            first = sequence
        shortest[sequence] = first
    number: dict[tuple[int, ...], int] = {}
    return [[number.setdefault(shortest[tuple(each)], len(number)) for each in sequences] for sequences in sources]


def parts(
    sources: Sequence[Sequences], sizes: Callable[[int], Sequence[int]], seed: int, least: int, purpose: str
) -> list[list[int]]:
    """The part, from 0, that every sample of every source falls into. All copies of a document share one.

    Parameters
    ----------
    sizes
        How many documents each part shall get of a source with so many of them; they add up to that number. Where
        sources share documents, they are kept as nearly as can be.
    seed
        Draws. The documents of one source are drawn alike whatever the others are, as long as they share none.
    least
        So many documents every source must have, 2 or more.
    purpose
        What needs the parts, for the message.

    Raises
    ------
    LaminaError
        If a source has fewer documents, or shares so many with others that one of its parts would be empty.
    """
    numbered = documents(sources)
    part: dict[int, int] = {}
    # The smallest source first, since its parts are the easiest to leave empty.
    for source in sorted(numbered, key=lambda each: len(set(each))):
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


def held_out(sources: Sequence[Sequences], share: float, seed: int, purpose: str, least: int = 2) -> list[list[bool]]:
    """Whether each sample of each source is held out: a `share` of its documents, at least one, and never all.

    The other arguments, and what is raised, are those of `parts`.
    """

    def sizes(count: int) -> tuple[int, int]:
        held = min(max(1, round(share * count)), count - 1)
        return count - held, held

    return [[bool(part) for part in source] for source in parts(sources, sizes, seed, least, purpose)]
