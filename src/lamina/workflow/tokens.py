"""Tokens of a calibration or task, by which its cost and its memory are counted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.data.calibrations import Sample
from lamina.sweep import packing


@dataclass(frozen=True)
class Tokens:
    """Tokens of samples: `packed` lines, distinct model inputs (`rows`), `stream` (context and gold).

    Of the packed lines, the `longest` has so many, and `scored` in all have logits.
    """

    samples: int
    packed: int
    rows: int
    stream: int
    longest: int = 0
    scored: int = 0

    def scaled(self, samples: int) -> "Tokens":
        """The same mean lengths with another number of samples."""
        share = samples / self.samples
        names = ("packed", "rows", "stream", "scored")
        return replace(self, samples=samples, **{name: round(getattr(self, name) * share) for name in names})

    def plus(self, other: "Tokens") -> "Tokens":
        """Those of both."""
        names = ("samples", "packed", "rows", "stream", "scored")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Tokens(**sums, longest=max(self.longest, other.longest))


def counted(samples: Sequence[Sample]) -> Tokens:
    """Tokens of samples, as the engine packs them and as the naive way reads them."""
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
