"""The common part of jobs that measure many variants of one model: one model load, and two tables. Results are kept
beside the output until the tables are written, so that a job that was killed goes on from there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from lamina.evaluation import assembly
from lamina.evaluation.assembly import Parts
from lamina.evaluation.together import Together, candidate
from lamina.models.load import load_model
from lamina.models.materialise import materialise
from lamina.runtime.timeleft import TimeLeft, span
from lamina.stages.benchmark_generation import BenchmarkGeneration
from lamina.stages.benchmark_perplexity import BenchmarkPerplexity
from lamina.stages.benchmark_task import BenchmarkTask
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.store.unfinished import Progress, digest
from lamina.study.variant import Variant

BenchmarkJob = BenchmarkTask | BenchmarkGeneration | BenchmarkPerplexity
Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str, Together], tuple[Rows, Rows]]
"""Of a model, what messages call it, and what can be measured with it in one pass: rows of `benchmarks` and of
`benchmark_samples`, without a variant's keys."""

_PATCHES = 1 << 30  # bytes of patches that are held at a time
# What a variant takes in the pass over all, as a share of what one takes alone: seen with 29 and 3 variants of SmolLM2.
_SHARED = 0.45


def run(job: BenchmarkJob, prepare: Callable[[dict[str, Any], PreTrainedModel], Score]) -> None:
    """Score every variant and write both tables; `prepare` makes the score from the manifest and the unpruned model."""
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    unfinished = _Unfinished(job)
    if job.variants:
        manifest = seal.read_json(job.manifest)
        base = load_model(manifest, check=job.check)
        for variant, (measured, documents) in _scored(job, base, prepare(manifest, base), unfinished):
            rows += [variant.row() | row for row in measured]
            samples += [variant.row() | row for row in documents]
    store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
    store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)
    unfinished.remove()


def _scored(
    job: BenchmarkJob, base: PreTrainedModel, score: Score, unfinished: "_Unfinished"
) -> Iterator[tuple[Variant, tuple[Rows, Rows]]]:
    """Every variant that was not refused, with its scores."""
    done = 0.0
    left: TimeLeft | None = None
    for parts in _some(job.variants):
        candidates = {assembly.title(variant): candidate(base, each) for variant, each in parts.items()}
        named = {name: prepared for name, prepared in candidates.items() if prepared is not None}
        together = Together(base, named, unfinished.of_pass)
        waiting = {variant: each for variant, each in parts.items() if str(variant) not in unfinished.scored}
        alone = sum(assembly.title(variant) not in named for variant in waiting)
        pass_ = _SHARED * len(named) if alone < len(waiting) else 0.0
        # Variants of later groups are taken to be like these.
        total = done + (alone + pass_) * len(job.variants) / len(parts)
        left = left or TimeLeft(total)
        left.total, passed = total, False
        for variant, each in parts.items():
            if variant in waiting:
                shares = assembly.title(variant) in named
                # The first one that shares the pass runs it for all.
                work = 1.0 if not shares else 0.0 if passed else pass_
                passed = passed or shares
                model = materialise(base, each.plan, each.patches, each.adapter)
                with span(done / total, (done + work) / total):
                    unfinished.note(variant, score(model, assembly.title(variant), together))
                done += work
                left.step(work)
            yield variant, unfinished.scored[str(variant)]


def _some(variants: Sequence[str]) -> Iterator[Mapping[Variant, Parts]]:
    """The parts of the variants that were not refused, in groups whose patches have at most `_PATCHES` bytes."""
    chosen, held = dict[Variant, Parts](), 0
    for variant in map(Variant.parse, variants):
        if assembly.refused(variant):
            continue
        parts = assembly.read(variant)
        tensors = [tensor for fitted in (parts.patches or {}).values() for tensor in fitted.tensors.values()]
        size = sum(tensor.nbytes for tensor in tensors)
        if chosen and held + size > _PATCHES:
            yield chosen
            chosen, held = {}, 0
        chosen[variant] = parts
        held += size
    if chosen:
        yield chosen


class _Unfinished:
    """The results of a job so far, on disk: `scored`, the rows by the variant's text, and the passes under way."""

    def __init__(self, job: BenchmarkJob) -> None:
        self._key = digest({"job": job.origin})
        self._file = f"{job.output}.unfinished"
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
        self._passes.append(Progress(f"{self._file}.{len(self._passes)}", digest({"pass": self._key, "rows": what})))
        return self._passes[-1]

    def remove(self) -> None:
        """Remove all files, once the tables are written."""
        for each in (self._progress, *self._passes):
            each.remove()
