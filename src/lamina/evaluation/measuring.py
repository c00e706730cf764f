"""Measures many variants of one model on one task or text, with one model load.

Results are kept in files until the tables are written, so that a killed job can continue.
"""

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.evaluation import assembly
from lamina.evaluation.together import Together, candidate_of
from lamina.models.materialise import materialise
from lamina.store.unfinished import Progress, digest_settings
from lamina.variant import Variant

Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str, Together], tuple[Rows, Rows]]
"""Scores a model: rows of `benchmarks` and of `benchmark_samples`, without the variant's keys.

The arguments are the model, its name in messages, and what is measured with it in one pass.
"""

_PATCH_BYTES = 1 << 30  # limit of the patches that are in memory at a time


class Unfinished:
    """The results so far, in `file` and in files named like it.

    Files of another `key` count as missing. `scored` has the rows of each variant, by its text.
    """

    def __init__(self, file: str | Path, key: str) -> None:
        self._file = str(file)
        self._key = digest_settings({"job": key})
        self._progress = Progress(self._file, self._key)
        self.scored: dict[str, tuple[Rows, Rows]] = {}
        saved = self._progress.load()
        if saved is not None:
            _, self.scored = saved

    def note(self, variant: Variant, scores: tuple[Rows, Rows]) -> None:
        """Keep the scores of a variant."""
        self.scored[str(variant)] = scores
        if self._progress.is_due():
            self._progress.save({}, self.scored)

    def of_pass(self, rows_hash: str) -> Progress:
        """The file that keeps a pass over the rows with this hash."""
        key = digest_settings({"pass": self._key, "rows": rows_hash})
        return Progress(f"{self._file}.{rows_hash[:16]}", key)

    def remove(self) -> None:
        """Remove all files, once the tables are written."""
        self._progress.remove()
        for file in Path(self._file).parent.glob(f"{glob.escape(Path(self._file).name)}.*"):
            file.unlink()


def measure_variants(
    base: PreTrainedModel,
    variants: Iterable[tuple[Variant, assembly.Parts]],
    score: Score,
    unfinished: Unfinished,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of `benchmarks` and of `benchmark_samples` of every variant.

    base: The base model of all variants.
    variants: Each variant with its parts, as from `assembly.read_all_parts`, without refused ones.
    """
    benchmark_rows: list[dict[str, Any]] = []
    sample_rows: list[dict[str, Any]] = []
    for parts_by_variant in _group_by_patch_size(variants):
        candidates = {}
        for variant, parts in parts_by_variant.items():
            variant_candidate = candidate_of(base, parts)
            if variant_candidate is not None:
                candidates[assembly.name_variant(variant)] = variant_candidate
        together = Together(base, candidates, unfinished.of_pass)

        for variant, parts in parts_by_variant.items():
            if str(variant) not in unfinished.scored:
                model = materialise(base, *parts)
                unfinished.note(variant, score(model, assembly.name_variant(variant), together))
            variant_rows, variant_samples = unfinished.scored[str(variant)]
            benchmark_rows += [variant.row() | row for row in variant_rows]
            sample_rows += [variant.row() | row for row in variant_samples]
    return benchmark_rows, sample_rows


def _group_by_patch_size(
    variants: Iterable[tuple[Variant, assembly.Parts]],
) -> Iterator[Mapping[Variant, assembly.Parts]]:
    """The parts of all variants, in groups.

    The patches of a group have at most `_PATCH_BYTES` bytes, unless it is a single variant.
    """
    group: dict[Variant, assembly.Parts] = {}
    group_bytes = 0
    for variant, parts in variants:
        patch_bytes = _count_patch_bytes(parts)
        if group and group_bytes + patch_bytes > _PATCH_BYTES:
            yield group
            group = {}
            group_bytes = 0
        group[variant] = parts
        group_bytes += patch_bytes
    if group:
        yield group


def _count_patch_bytes(parts: assembly.Parts) -> int:
    n_bytes = 0
    for fitted in (parts.patches or {}).values():
        n_bytes += sum(tensor.nbytes for tensor in fitted.tensors.values())
    return n_bytes
