"""The batches of a pass, from the lengths of its lines alone."""

from collections.abc import Iterator, Sequence

from lamina.engine import packing


def split_into_batches(
    lengths: Sequence[float], share: float, budget: float
) -> Iterator[tuple[float, float]]:
    """The longest line and the number of lines of each batch, for a share of some lines.

    lengths: The lengths of all lines, ascending.
    budget: Tokens of a batch, padding included.
    """
    longest = 0.0
    n_lines = 0.0
    for length in reversed(lengths):
        is_large = longest * n_lines > min(budget / 16, packing.SMALL_BATCH)
        is_short = length < packing.SHORT * longest and is_large
        is_full = longest * (n_lines + share) > budget and n_lines + share > 1
        if n_lines and (is_full or is_short):
            yield longest, n_lines
            n_lines = 0.0
        if not n_lines:
            longest = length
        n_lines += share
    if n_lines:
        yield longest, n_lines


def measure_padding(lengths: Sequence[float], budget: float) -> float:
    """Positions of all batches by the tokens of their lines; 1 without lines.

    lengths, budget: As for `split_into_batches`.
    """
    if not lengths:
        return 1.0
    n_positions = sum(
        longest * n_lines for longest, n_lines in split_into_batches(lengths, 1.0, budget)
    )
    return n_positions / sum(lengths)
