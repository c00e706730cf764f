"""Splits samples into those that something is fitted on and those that are held out.

All of lamina splits in this way. It draws documents, never samples. A calibration may hold a
document many times, and `data:` may add it again, cut at another length. A fit on one copy has seen
all copies. So two samples are one document if their token sequences (context and right answer) are
equal, or if one begins with the other.
"""

import random
from collections.abc import Callable, Sequence

from lamina.errors import LaminaError

Sequences = Sequence[Sequence[int]]
"""Token ids of the samples of one calibration."""


def index_documents(sources: Sequence[Sequences]) -> list[list[int]]:
    """The document of every sample of every source, as an index.

    Documents are numbered from 0 over all sources, in order of appearance.
    """
    prefix_by_sequence = _shortest_prefixes(sources)
    index_by_prefix: dict[tuple[int, ...], int] = {}
    indices: list[list[int]] = []
    for sequences in sources:
        source_indices: list[int] = []
        for sequence in sequences:
            prefix = prefix_by_sequence[tuple(sequence)]
            source_indices.append(index_by_prefix.setdefault(prefix, len(index_by_prefix)))
        indices.append(source_indices)
    return indices


def _shortest_prefixes(sources: Sequence[Sequences]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each sequence, the shortest of all sequences that it begins with, possibly itself."""
    different: set[tuple[int, ...]] = set()
    for sequences in sources:
        different.update(tuple(sequence) for sequence in sequences)
    shortest: dict[tuple[int, ...], tuple[int, ...]] = {}
    prefix: tuple[int, ...] | None = None
    # In sorted order, all sequences that begin with a sequence follow right after it.
    for sequence in sorted(different):
        if prefix is None or sequence[: len(prefix)] != prefix:
            prefix = sequence
        shortest[sequence] = prefix
    return shortest


def split_documents(
    sources: Sequence[Sequences],
    sizes: Callable[[int], Sequence[int]],
    seed: int,
    least: int,
    purpose: str,
) -> list[list[int]]:
    """The part, from 0, of every sample of every source. All copies of a document share one part.

    sizes: Maps the number of documents of a source to the sizes of the parts, which add up to it.
        If sources share documents, the sizes are met as closely as possible.
    seed: Seed of the draws. The draws from one source do not depend on the others if they share no
        documents.
    least: The least number of documents of every source, 2 or more.
    purpose: What needs the parts, for the message.

    Raises LaminaError if a source has fewer documents, or shares so many with others that one of
    its parts would be empty.
    """
    documents_by_source = index_documents(sources)
    part_by_document: dict[int, int] = {}
    # The smallest source comes first, because its parts are the most likely to end up empty.
    for source in sorted(documents_by_source, key=lambda indices: len(set(indices))):
        different = list(dict.fromkeys(source))
        if len(different) < least:
            raise LaminaError(
                f"{purpose}, which takes at least {least} different documents. A calibration has "
                f"{len(different)} (samples: {len(source)}). Copies count once, as do a text and "
                "a longer one that begins with it. Raise the calibration's limit, or use a "
                "calibration with other documents."
            )
        part_sizes = sizes(len(different))
        _assign_parts(different, part_sizes, seed, part_by_document)
        filled_parts = {part_by_document[document] for document in different}
        if len(filled_parts) < len(part_sizes):
            raise LaminaError(
                f"{purpose}, but one of its calibrations shares so many of its {len(different)} "
                "documents with others that none is left for one side. Give that calibration more "
                "documents, or leave it out."
            )
    part_by_sample: list[list[int]] = []
    for source in documents_by_source:
        part_by_sample.append([part_by_document[document] for document in source])
    return part_by_sample


def _assign_parts(
    documents: Sequence[int],
    part_sizes: Sequence[int],
    seed: int,
    part_by_document: dict[int, int],
) -> None:
    """Draw a part for the documents that have none yet.

    Each goes to the part that still lacks the largest share of its size.
    """
    n_lacking = list(part_sizes)
    new_documents: list[int] = []
    for document in documents:
        if document in part_by_document:
            n_lacking[part_by_document[document]] -= 1
        else:
            new_documents.append(document)

    random.Random(seed).shuffle(new_documents)
    for document in new_documents:
        lacking_shares = [
            lacking / size for lacking, size in zip(n_lacking, part_sizes, strict=True)
        ]
        part = lacking_shares.index(max(lacking_shares))
        part_by_document[document] = part
        n_lacking[part] -= 1


def held_out(
    sources: Sequence[Sequences], share: float, seed: int, purpose: str, least: int = 2
) -> list[list[bool]]:
    """Whether each sample of each source is held out.

    A `share` of the documents of each source is held out: at least one, and never all. The other
    arguments and the errors are those of `split_documents`.
    """

    def sizes(n_documents: int) -> tuple[int, int]:
        n_held_out = min(max(1, round(share * n_documents)), n_documents - 1)
        return n_documents - n_held_out, n_held_out

    part_by_sample = split_documents(sources, sizes, seed, least, purpose)
    return [list(map(bool, source_parts)) for source_parts in part_by_sample]
