"""Selection with the repair in the loop: candidates are measured as they would be once repaired.

A layer that seems necessary may be easy to repair. So every run of layers that a candidate lacks
gets its best patch while the candidate is scored. The patches map streams of the unpruned model, so
one pass of that model serves the runs of all candidates.

A patch has up to C² numbers, so it memorises a small calibration. Therefore the documents are drawn
into two folds. Each fold is scored under patches that were fitted, ridge included, on the other
one. A document never scores a patch that it helped to choose, even if another calibration contains
it at another length. Rule `fit_patch` fits the patches of a finished plan on all samples.

Memory: each boundary needs up to C² float32 numbers per fold, 4 GiB at C = 4096 with 32 candidates.
A `PatchStore` keeps up to `MAX_DEVICE_BYTES` of them on a GPU, or `budgets.PATCH_BYTES` in host
memory. The others wait in a file, from which each pass reads those that it applies. Cutting a sweep
into more blocks reduces this.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from lamina.data.splitting import split_documents
from lamina.engine.candidates import Candidate, Observation
from lamina.engine.scores import Name
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.options.repairs import Repair
from lamina.repairs import protocol
from lamina.repairs.patch_store import PatchStore

MAX_DEVICE_BYTES = 8 << 30
FOLDS = (0, 1)


def draw_folds(sources: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[int]]:
    """The fold of every sequence of every source, 0 or 1, drawn by document over all sources.

    Half of the documents of each source are in each fold.

    Raises LaminaError if a source has fewer than four documents, because part of each half is
    held out to choose a ridge.
    """

    def halve(n_documents: int) -> tuple[int, int]:
        return n_documents - n_documents // 2, n_documents // 2

    fold_purpose = (
        "selection with a repair in the loop (`repair` of a selector) fits on one half of the "
        "documents and scores the other"
    )
    return split_documents(sources, halve, seed, 4, fold_purpose)


@dataclass(frozen=True)
class Repairs:
    """The patches of all runs, by fold.

    Candidates with the same run share its patch and therefore its stream.
    """

    fold_of_sample: Sequence[int]
    """Fold of each sample of the calibration that is scored."""
    patches: Sequence[Mapping[Boundary, Patch]]
    """For each fold, the patches that score it. They were fitted on the other fold."""
    n_layers: int

    def repair_candidate(self, candidate: Candidate, fold: int) -> Candidate:
        """The candidate with the patches that score it on a fold."""
        fold_patches = self.patches[fold]
        removed_runs = candidate_boundaries([candidate], self.n_layers)
        return replace(candidate, patches={run: fold_patches[run] for run in removed_runs})

    def repair_observation(self, observation: Observation, fold: int) -> Observation:
        """The observation of repaired candidates on a fold."""
        before = observation.before
        return replace(
            observation,
            model=self.repair_candidate(observation.model, fold),
            before=None if before is None else self.repair_candidate(before, fold),
            after=self.repair_candidate(observation.after, fold),
        )

    def measure(
        self,
        session: Session,
        sample_indices: Iterable[int],
        wanted: Mapping[Name, Candidate],
        observed: Mapping[Name, Observation] | None = None,
    ) -> None:
        """Like `Session.measure`, with candidates repaired by patches fitted on the other fold."""
        indices = list(sample_indices)
        for fold in FOLDS:
            fold_samples = [index for index in indices if self.fold_of_sample[index] == fold]
            if not fold_samples:
                continue
            repaired_candidates = {
                name: self.repair_candidate(candidate, fold) for name, candidate in wanted.items()
            }
            repaired_observations = {
                name: self.repair_observation(observation, fold)
                for name, observation in (observed or {}).items()
            }
            session.measure(fold_samples, repaired_candidates, repaired_observations)


def candidate_boundaries(candidates: Iterable[Candidate], depth: int) -> list[Boundary]:
    """The boundaries of all runs of units that candidates lack, in order, without duplicates.

    depth: Number of layers of the base model.
    """
    removed_runs: set[Boundary] = set()
    for candidate in candidates:
        removed_runs.update(find_runs(candidate.edits, depth))
    return sorted(removed_runs)


def fit_loop_patches(
    model: PreTrainedModel,
    sources: Sequence[Source],
    candidates: Iterable[Candidate],
    options: Any,
    seed: int,
    scored: int = 0,
) -> Repairs:
    """Fit the patches of every run of the candidates, on each fold.

    model: The unpruned base model, not yet wrapped.
    sources: The samples that the repair is fitted on. Sources of weight 0 only get folds.
    options: Those of the repair.
    seed: Draws the folds, and the documents that the method holds out of each fold.
    scored: Index of the source whose samples will be scored.

    Raises LaminaError if there are too few documents for two folds, or the method does not give a
    linear map of the stream.
    """
    n_layers = len(layers_of(model))
    folds = draw_folds([source.sequences for source in sources], seed)
    removed_runs = candidate_boundaries(candidates, n_layers)
    patch_store = store_for(model)
    patches: list[dict[Boundary, Patch]] = []
    for scored_fold in FOLDS:
        fold_sources = _sources_outside(scored_fold, sources, folds)
        fold_patches: dict[Boundary, Patch] = {}
        if removed_runs:
            fold_patches.update(
                fit_patches(model, fold_sources, removed_runs, options, seed, patch_store)
            )
        patches.append(fold_patches)
    return Repairs(folds[scored], patches, n_layers)


def _sources_outside(
    fold: int, sources: Sequence[Source], folds: Sequence[Sequence[int]]
) -> list[Source]:
    """The sequences of the other fold, of all sources that a repair is fitted on."""
    fold_sources: list[Source] = []
    for source, fold_of_sequence in zip(sources, folds, strict=True):
        if not source.weight:
            continue
        sequences = [
            sequence
            for sequence, sequence_fold in zip(source.sequences, fold_of_sequence, strict=True)
            if sequence_fold != fold
        ]
        fold_sources.append(replace(source, sequences=sequences))
    return fold_sources


def fit_patches(
    model: PreTrainedModel,
    sources: Sequence[Source],
    removed_runs: Sequence[Boundary],
    options: Any,
    seed: int,
    store: PatchStore,
) -> Iterator[tuple[Boundary, Patch]]:
    """The patch of each run of layers, fitted on all samples of the sources.

    See `fit_loop_patches`.
    """
    method = protocol.load_method(options.method)
    for boundary, statistics in method.collect(model, sources, removed_runs, options, seed):
        patch = method.as_patch(method.fit(statistics, options).tensors)
        if patch is None:
            raise LaminaError(
                f"repair method '{options.method}' is not a linear map of the stream, so it cannot be "
                "in place while candidates are scored. Give the selector a repair of method "
                f"{Repair.of_stream()}, or none."
            )
        yield boundary, store.keep(patch)


def store_for(model: PreTrainedModel) -> PatchStore:
    """A store of patches for a model's passes: on its GPU, or in part of the host's memory."""
    if model.device.type == "cuda":
        return PatchStore(None, MAX_DEVICE_BYTES, model.device)
    return PatchStore()
