"""Tokens of samples, as the engine packs them and as the naive way reads them."""

from collections.abc import Sequence

from lamina.cost.tokens import Tokens
from lamina.data.calibrations import Sample
from lamina.engine import packing


def counted(samples: Sequence[Sample]) -> Tokens:
    """Tokens of all samples together."""
    lines = [line for number, sample in enumerate(samples) for line in packing.pack(number, sample)]
    inputs = [{row.context + row.continuation[:-1] for row in sample.rows} for sample in samples]
    return Tokens(
        samples=len(samples),
        packed=sum(len(line.tokens) for line in lines),
        rows=sum(len(tokens) for distinct in inputs for tokens in distinct),
        stream=sum(len(sample.sequence()) for sample in samples),
        longest=max((len(line.tokens) for line in lines), default=0),
        scored=sum(len(packing.scored_positions(line)) for line in lines),
    )
