"""Patches for a search with the repair in the loop, fitted as soon as a candidate lacks a new run of layers.

A search tries many sets, which have few runs in all, and it does not know these runs beforehand. So the patches of a
run are fitted when the first candidate lacks it, in two folds as in `looped`, and are kept for the next candidate.

Memory: two operators of C² float32 numbers per run. Beyond `HELD` bytes the runs that were used longest ago are
dropped, and fitted again if a candidate needs them.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.models.boundary import Boundary, Patch
from lamina.selection.looped import Repairs, boundaries

HELD = 8 << 30


class Growing:
    """Repairs that `fit` extends. A `Looped` session gets `repairs`."""

    def __init__(
        self,
        fitted: Callable[[Sequence[Candidate]], Repairs],
        seen: np.ndarray,
        count: int,
        depth: int,
        held: int = HELD,
    ) -> None:
        """`fitted` fits the runs of candidates on the samples with the numbers `seen`, of `count`.

        No fold was fitted on the other samples, so either may score them; the folds take turns.
        """
        self._fitted, self._held = fitted, held
        fold = [number % 2 for number in range(count)]
        for number, drawn in zip(seen.tolist(), fitted([]).fold, strict=True):
            fold[number] = drawn
        self._patches: list[dict[Boundary, Patch]] = [{}, {}]
        self.repairs = Repairs(fold, self._patches, depth)

    def fit(self, candidates: Sequence[Candidate]) -> None:
        """Fit the patches of all runs that the candidates lack, where they are not there yet."""
        wanted = boundaries(candidates, self.repairs.depth)
        new = [run for run in wanted if run not in self._patches[0]]
        if new:
            fitted = self._fitted([Candidate(frozenset(map(str, range(*run)))) for run in new])
            for mine, theirs in zip(self._patches, fitted.patches, strict=True):
                mine |= theirs
        for mine in self._patches:
            mine |= {run: mine.pop(run) for run in wanted}  # what was asked for last stands last
        old = [run for run in self._patches[0] if run not in wanted]
        for run in old:
            if self._size() <= self._held:
                break
            for mine in self._patches:
                del mine[run]

    def _size(self) -> int:
        return sum(4 * patch.operator.numel() for mine in self._patches for patch in mine.values())
