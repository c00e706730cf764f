"""Tokens of a calibration or task, from which its cost and its memory follow."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tokens:
    """Tokens of samples: `packed` lines, distinct model inputs (`rows`), `stream` (context and gold).

    `longest` is the number of tokens of the longest packed line. `scored` is the number of packed tokens with logits.
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
        """The tokens of both together."""
        names = ("samples", "packed", "rows", "stream", "scored")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Tokens(**sums, longest=max(self.longest, other.longest))
