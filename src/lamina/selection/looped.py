"""Selection with the repair in the loop: candidates are measured as they would be once repaired.

A layer that seems necessary may be easy to repair. So every run of layers that a candidate lacks gets its best patch
while the candidate is scored. The patches map streams of the unpruned model, so one pass of that model serves the runs
of all candidates.

A patch, of up to C² numbers, remembers a small calibration. So the documents are drawn into two folds, and each fold is
scored under patches that were fitted on the other one, ridge and all: nothing about a patch was chosen on a document
that scores it, also if another calibration has that document at another length. The patches of a finished plan are
fitted on all samples, by `fit_patch` as ever.

Memory: each boundary needs up to C² float32 numbers per fold: 4 GiB at C = 4096 with 32 candidates. They stay on a GPU
if all together take at most `ON_DEVICE` bytes; else they wait in a `PatchStore`, and each pass fetches those that it
applies. More blocks of a sweep divide this.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.config.repairs import Repair
from lamina.data.splitting import parts
from lamina.engine.candidates import Candidate, Observation
from lamina.engine.scores import Name, Scores
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.structure import layers_of
from lamina.models.surgery import runs, units_of
from lamina.repair import protocol
from lamina.repair.patch_store import PatchStore

ON_DEVICE = 8 << 30


def folds(sources: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[int]]:
    """The fold of every sequence of every source, 0 or 1: a half of each source, drawn by document over all sources.

    Raises LaminaError if a source has fewer than four documents, because each half holds some out to choose a ridge.
    """
    purpose = (
        "selection with a repair in the loop (`repair` of a selector) fits on one half of the documents and scores "
        "the other"
    )
    return parts(sources, lambda count: (count - count // 2, count // 2), seed, 4, purpose)


@dataclass(frozen=True)
class Repairs:
    """The patches of all runs, by fold. Candidates with the same run share the patch, and so their stream."""

    fold: Sequence[int]  # of each sample of the calibration
    patches: Sequence[
        Mapping[Boundary, Patch]
    ]  # for each fold, those that score it, fitted on the other fold
    depth: int  # L

    def repaired(self, candidate: Candidate, fold: int) -> Candidate:
        """A candidate with the patches that score it on a fold."""
        runs = boundaries([candidate], self.depth)
        return replace(
            candidate, patches={boundary: self.patches[fold][boundary] for boundary in runs}
        )


def boundaries(candidates: Iterable[Candidate], depth: int) -> list[Boundary]:
    """The boundaries of all runs of units that candidates lack."""
    return sorted({run for one in candidates for run in runs(one.removed, depth)})


def fitted(
    model: PreTrainedModel,
    sources: Sequence[Source],
    candidates: Iterable[Candidate],
    options: Any,
    seed: int,
    scored: int = 0,
    store: PatchStore | None = None,
) -> Repairs:
    """Patches for every run of the candidates, fitted on each fold.

    model: The unpruned base model, not yet wrapped.
    sources: The samples that the repair is fitted on. Sources of weight 0 only get folds.
    options: An instance of the method's class in `lamina.config.repairs`.
    seed: Draws the folds, and the documents that the method holds out of each fold.
    scored: Number of the source whose samples will be scored.
    store: Where the patches wait, by default a store of their own.

    Raises LaminaError if there are too few documents for two folds, or the method is not a linear map of the stream.
    """
    depth = len(layers_of(model))
    drawn, wanted = (
        folds([source.sequences for source in sources], seed),
        boundaries(candidates, depth),
    )
    store = store or store_for(model)

    def patches_of(judged: int) -> dict[Boundary, Patch]:
        others = [
            replace(
                source,
                sequences=[
                    one for one, at in zip(source.sequences, fold, strict=True) if at != judged
                ],
            )
            for source, fold in zip(sources, drawn, strict=True)
            if source.weight
        ]
        return dict(patches(model, others, wanted, options, seed, store))

    return Repairs(drawn[scored], [patches_of(fold) if wanted else {} for fold in (0, 1)], depth)


def patches(
    model: PreTrainedModel,
    sources: Sequence[Source],
    runs: Sequence[Boundary],
    options: Any,
    seed: int,
    store: PatchStore,
) -> Iterator[tuple[Boundary, Patch]]:
    """The patch of each run of layers, fitted on all sources, in a store; see `fitted`."""
    method = protocol.method(options.method)
    for boundary, statistics in method.collect(model, sources, runs, options, seed):
        patch = method.as_patch(method.fit(statistics, options).tensors)
        if patch is None:
            raise LaminaError(
                f"repair method '{options.method}' is no linear map of the stream, so it cannot be in place while "
                f"candidates are scored. Give the selector a repair of method {Repair.of_stream()}, or none."
            )
        yield boundary, store.keep(patch)


def store_for(model: PreTrainedModel, folder: Path | None = None) -> PatchStore:
    """A store of patches for the passes of a model: first on its GPU, or in a part of the host's memory."""
    if model.device.type == "cuda":
        return PatchStore(folder, ON_DEVICE, model.device)
    return PatchStore(folder)


class Looped:
    """A session that repairs the candidates that it measures, used in the place of a `Session`."""

    def __init__(self, session: Session, repairs: Repairs) -> None:
        self.session, self.repairs = session, repairs

    @property
    def scores(self) -> Scores:
        """The scores measured so far."""
        return self.session.scores

    def measure(
        self,
        numbers: Iterable[int],
        wanted: Mapping[Name, Candidate],
        observed: Mapping[Name, Observation] | None = None,
    ) -> None:
        """Does the same as `Session.measure`, but repairs every candidate by patches fitted on the other fold."""
        numbers, repaired = list(numbers), self.repairs.repaired
        for fold in (0, 1):
            here = [number for number in numbers if self.repairs.fold[number] == fold]
            if not here:
                continue
            seen = {
                name: replace(
                    look,
                    model=repaired(look.model, fold),
                    before=look.before and repaired(look.before, fold),
                    after=repaired(look.after, fold),
                )
                for name, look in (observed or {}).items()
            }
            self.session.measure(
                here, {name: repaired(one, fold) for name, one in wanted.items()}, seen
            )


class Growing:
    """Repairs for a search, which does not know its runs beforehand: `fit` extends the `repairs` of a `Looped` session.

    The patches of a run are fitted when the first candidate lacks it, and are kept for the next one.
    """

    def __init__(
        self,
        fitted: Callable[[Sequence[Candidate]], Repairs],
        seen: np.ndarray,
        count: int,
        depth: int,
    ) -> None:
        """`fitted` fits the runs of candidates on the samples with the numbers `seen`, of `count`.

        No fold was fitted on the other samples, so either may score them; the folds take turns.
        """
        self._fitted = fitted
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
            fitted = self._fitted([Candidate(frozenset(units_of(*run))) for run in new])
            for mine, theirs in zip(self._patches, fitted.patches, strict=True):
                mine |= theirs
