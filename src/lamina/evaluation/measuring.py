"""Many variants of one model measured on one task or text, with one model load. Results are kept in files until the
tables are written, so that a job that was killed goes on from there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.evaluation import assembly
from lamina.evaluation.together import Together, candidate
from lamina.models.materialise import materialise
from lamina.store.unfinished import Progress, digest
from lamina.study import paths
from lamina.study.variant import Variant

Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str, Together], tuple[Rows, Rows]]
"""Of a model, what messages call it, and what can be measured with it in one pass: rows of `benchmarks` and of
`benchmark_samples`, without a variant's keys."""

_PATCHES = 1 << 30  # bytes of patches that are held at a time


class Unfinished:
    """The results so far, on disk in `file` and files named like it: `scored`, the rows by the variant's text, and the
    passes under way. Files of another `key` count as missing.
    """

    def __init__(self, file: str | Path, key: str) -> None:
        self._key, self._file = digest({"job": key}), str(file)
        self._progress, self._passes = Progress(self._file, self._key), list[Progress]()
        saved = self._progress.load()
        self.scored: dict[str, tuple[Rows, Rows]] = saved[1] if saved else {}

    def note(self, variant: Variant, scored: tuple[Rows, Rows]) -> None:
        """Keep the scores of a variant."""
        self.scored[str(variant)] = scored
        if self._progress.is_due():
            self._progress.save({}, self.scored)

    def of_pass(self, what: str) -> Progress:
        """The file that keeps a pass over the rows with this hash."""
        self._passes.append(
            Progress(f"{self._file}.{len(self._passes)}", digest({"pass": self._key, "rows": what}))
        )
        return self._passes[-1]

    def remove(self) -> None:
        """Remove all files, once the tables are written."""
        for each in (self._progress, *self._passes):
            each.remove()


def measure(
    base: PreTrainedModel,
    variants: Sequence[Variant],
    score: Score,
    unfinished: Unfinished,
    results: str | Path = paths.RESULTS,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of `benchmarks` and of `benchmark_samples` of every variant that was not refused.

    base: The unpruned model of all variants.
    results: The folder with their plans, patches and adapters.
    """
    rows, samples = list[dict[str, Any]](), list[dict[str, Any]]()
    for parts in _some(variants, results):
        candidates = {variant: candidate(base, each) for variant, each in parts.items()}
        named = {
            assembly.title(variant): each
            for variant, each in candidates.items()
            if each is not None
        }
        together = Together(base, named, unfinished.of_pass)
        for variant, each in parts.items():
            if str(variant) not in unfinished.scored:
                model = materialise(base, each.plan, each.patches, each.adapter)
                unfinished.note(variant, score(model, assembly.title(variant), together))
            measured, documents = unfinished.scored[str(variant)]
            rows += [variant.row() | row for row in measured]
            samples += [variant.row() | row for row in documents]
    return rows, samples


def _some(
    variants: Sequence[Variant], results: str | Path
) -> Iterator[Mapping[Variant, assembly.Parts]]:
    """The parts of the variants that were not refused, in groups whose patches have at most `_PATCHES` bytes."""
    chosen, held = dict[Variant, assembly.Parts](), 0
    for variant, parts in assembly.read_all(variants, results):
        tensors = [
            tensor
            for fitted in (parts.patches or {}).values()
            for tensor in fitted.tensors.values()
        ]
        size = sum(tensor.nbytes for tensor in tensors)
        if chosen and held + size > _PATCHES:
            yield chosen
            chosen, held = {}, 0
        chosen[variant] = parts
        held += size
    if chosen:
        yield chosen
