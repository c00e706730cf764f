"""The results of a study: variants measured together with the base model, and one exported."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from lamina.api.inputs import PreparedCalibration, PreparedModel
from lamina.api.variants import PrunedModel
from lamina.data.benchmark_documents import read_benchmark_documents
from lamina.data.documents import perplexity_texts
from lamina.data.lm_tasks import load_task, task_object
from lamina.data.overlap import check_overlap, document_hash, hash_word_runs
from lamina.data.prompts import Style
from lamina.errors import LaminaError
from lamina.evaluation.assembly import Parts
from lamina.evaluation.generation import GenerationBenchmark
from lamina.evaluation.measuring import Score, Unfinished, measure_variants
from lamina.evaluation.perplexity import PerplexityBenchmark
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.export.card import BaseSource
from lamina.models.export.save import export_variant
from lamina.models.load import load_model
from lamina.options.benchmarks import Benchmarks, PerplexityEntry, TaskEntry
from lamina.store import parquet
from lamina.variant import Variant


class Evaluation(NamedTuple):
    """What was measured on variants and on their base model."""

    benchmarks: pa.Table
    """Table `benchmarks` (docs/tables.md): a value, its standard error and its number of documents
    for each variant, task and metric. The base model has selector `none`."""
    samples: pa.Table
    """Table `benchmark_samples`: the same for each document. Variants answer the same documents, so
    differences can be paired."""


def evaluate(
    variants: PrunedModel | Sequence[PrunedModel],
    *,
    tasks: Mapping[str, Mapping[str, Any] | None] | None = None,
    perplexity: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Evaluation:
    """Measure variants of one base model, and the base model, on test documents.

    Args:
        variants: The variants, which must have different names.
        tasks: Tasks of lm-eval by name, or questions of your own by any name, with the keys of
            `benchmarks.tasks` in a configuration: `{"arc_easy": {}}`, or
            `{"support": {"choices": "held-out.jsonl"}}`.
        perplexity: Texts by name, with the keys of `benchmarks.perplexity`:
            `{"other": {"text": "other-book.txt", "window": 128}}`.

    Returns:
        Two tables, of the variants and of the documents.

    Raises LaminaError if an option is not allowed, a calibration holds documents of a test, or
    variants cannot be told apart.
    """
    if isinstance(variants, PrunedModel):
        variants = [variants]
    entries = Benchmarks.from_options({"tasks": tasks or {}, "perplexity": perplexity or {}})
    base = _find_base(variants)
    parts_by_variant = {Variant.base(base.name): Parts(None, None, None)}
    for pruned in variants:
        parts_by_variant[pruned.variant] = pruned.parts
    calibrations: dict[int, PreparedCalibration] = {}  # two may have one name
    for pruned in variants:
        calibrations |= {id(given): given for given in pruned.calibrations.values()}
    _check_overlap(entries.tasks, calibrations.values())
    _check_overlap(entries.perplexity, calibrations.values())

    benchmark_rows: list[dict[str, Any]] = []
    sample_rows: list[dict[str, Any]] = []
    for score in _open_benchmarks(base, entries):
        with tempfile.TemporaryDirectory() as folder:
            rows, samples = measure_variants(
                base.model,
                parts_by_variant.items(),
                score,
                Unfinished(Path(folder, "scores"), key=""),
            )
        benchmark_rows += rows
        sample_rows += samples
    return Evaluation(
        parquet.from_rows("benchmarks", benchmark_rows),
        parquet.from_rows("benchmark_samples", sample_rows),
    )


def _find_base(variants: Sequence[PrunedModel]) -> PreparedModel:
    """The base model that all variants share.

    Raises LaminaError if there is none, or two variants have one name.
    """
    bases = {id(pruned.base): pruned.base for pruned in variants}
    if len(bases) != 1:
        raise LaminaError(
            "variants: give at least one, all made from one call of lamina.open_model."
        )
    names = [str(pruned.variant) for pruned in variants]
    for name in names:
        if names.count(name) > 1:
            raise LaminaError(
                f"variants: two are named {name}. Give one of them another `name` when you select, "
                "repair or train it."
            )
    return next(iter(bases.values()))


def _check_overlap(
    benchmarks: Mapping[str, TaskEntry | PerplexityEntry],
    calibrations: Collection[PreparedCalibration],
) -> None:
    """Refuse a benchmark if a calibration contains one of its documents."""
    for name, entry in benchmarks.items():
        tested = [
            (document_hash(*document), hash_word_runs(*document))
            for document in read_benchmark_documents(name, entry, Path.cwd())
            if document[0].strip() or document[1]
        ]
        for calibration in calibrations:
            samples = calibration.content.samples
            runs_by_document = {sample.document: sample.runs for sample in samples}
            check_overlap(calibration.name, list(runs_by_document.items()), name, tested)


def _open_benchmarks(base: PreparedModel, entries: Benchmarks) -> Iterator[Score]:
    """The functions that score a model on each task and text, one at a time."""
    root = Path.cwd()
    style = Style.of(base.manifest)
    for name, entry in entries.tasks.items():
        task = load_task(name, root, **entry.loading)
        yield TaskBenchmark(task, base.model, base.tokenizer, entry.limit, style).score
        if entry.generate is not None:
            single_task = task_object(name, root, **entry.loading)
            yield GenerationBenchmark(
                single_task, base.model, base.tokenizer, entry.generate, entry.limit, style
            ).score
    for name, text in entries.perplexity.items():
        documents = perplexity_texts(text, root)
        yield PerplexityBenchmark(name, documents, base.tokenizer, text).score


def export(
    pruned: PrunedModel,
    folder: str | Path,
    *,
    form: str = "auto",
    max_shard_size: str = "5GB",
    measured: Evaluation | None = None,
) -> str:
    """Write a variant as a Hugging Face checkpoint, with tokenizer and model card.

    Args:
        pruned: The variant.
        folder: Where to write. It must be absent, empty or an earlier export, which is replaced.
        form: `stock` loads everywhere and holds no patch; `code` brings its modeling file; `gguf`
            takes layers out of the GGUF file that was opened; `auto` is stock where that is
            possible, else code.
        max_shard_size: The largest weights file.
        measured: The results that the model card quotes for the variant and its base model.

    Returns:
        The form that was written: `stock`, `code` or `gguf`.

    Raises LaminaError if the form cannot hold the variant, or it loads back as a different model.
    """
    base = pruned.base
    benchmark_rows: list[dict[str, Any]] = []
    if measured is not None:
        described = (pruned.variant, Variant.base(base.name))
        for row in measured.benchmarks.to_pylist():
            if Variant.of(row) in described:
                benchmark_rows.append(row)
    plan, patches, adapter = pruned.parts
    assert plan is not None  # a pruned model has one
    on_cpu = base.model
    if base.model.device.type != "cpu":
        on_cpu = load_model(base.manifest, torch.device("cpu"))
    return export_variant(
        on_cpu,
        BaseSource(pruned.variant, base.manifest, plan, benchmark_rows),
        folder,
        patches,
        adapter,
        form,
        max_shard_size,
    )
