"""`lamina.sweep`: a sweep of the workflow, in a notebook."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data import calibrations, encoding
from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.data.overlap import document_hash
from lamina.data.prepare import text_samples
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from lamina.models.units import COMPONENTS, all_units
from lamina.options.explain import suggest
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import RelevanceRow, score_sweep
from lamina.selection.removals import removal_rows
from lamina.store import parquet

Question = tuple[str, Sequence[str], int]
"""A context, its choices, and the index of the right one."""

STUDY_COLUMNS = ["model", "calibration", "selector", "removed"]  # a notebook has one of each


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Iterable[str | Question],
    units: Literal["layer", "attention", "mlp"] = "layer",
    metrics: Sequence[str] = ("accuracy", "perplexity", "cosine"),
    *,
    length: int = 256,
    seed: int = 0,
) -> pa.Table:
    """Measure the removal of every layer of a model, or of the attention or MLP of every layer.

    Args:
        model: From transformers, `lamina.load` or `lamina.open_model`. It is left unchanged.
        tokenizer: Its tokenizer.
        samples: Multiple-choice questions, each (context, choices, index of the right choice), or
            texts; not both. A choice follows its context after a space.
        units: What is removed one at a time: `layer`, `attention` or `mlp`.
        metrics: Names of relevance metrics (docs/choose.md).
        length: Number of tokens that are read from the beginning of a text.
        seed: Seed of the bootstrap for the intervals.

    Returns:
        One row for each metric and unit: `score`, its 95 % interval `ci_low` to `ci_high`, `rank`
            (1 is the least relevant), `n_samples`, and the `reason` if there is no score. The
            columns are those of table `relevance` (docs/tables.md).

    Raises LaminaError if there are no samples, a sample is neither a question nor a text, an option
    is unknown, or the engine does not reproduce this model's own numbers.
    """
    _check_options(units, metrics)
    was_training = model.training  # lm-eval's encoder changes it
    encoded_samples = _tokenise(model, tokenizer, list(samples), length)
    embedding: Any = model.get_input_embeddings()
    vocabulary_size = embedding.weight.shape[0]
    context = Context(calibrations.chance_accuracy(encoded_samples, vocabulary_size), seed=seed)
    unit_names = all_units(len(layers_of(model)), units)
    calibration = {"": CalibrationSamples(tuple(encoded_samples), {})}

    model.eval()
    relevance_rows: list[RelevanceRow] = []
    try:
        # One pass may measure several metrics.
        for pass_kind in dict.fromkeys(METRICS[metric].pass_ for metric in metrics):
            pass_metrics = [metric for metric in metrics if METRICS[metric].pass_ == pass_kind]
            sweep_rows = removal_rows(model, calibration, unit_names, pass_=pass_kind)
            table = parquet.from_rows("sweeps", sweep_rows)
            relevance_rows += score_sweep(table, pass_metrics, context, seed)
    finally:
        model.train(was_training)
    return parquet.from_rows("relevance", relevance_rows).drop_columns(STUDY_COLUMNS)


def _check_options(units: str, metrics: Sequence[str]) -> None:
    if units not in COMPONENTS:
        raise LaminaError(f"units: '{units}' is not known. Write one of: {', '.join(COMPONENTS)}.")
    for metric in metrics:
        if metric not in METRICS:
            raise LaminaError(f"metrics: '{metric}' is not known. {suggest(metric, list(METRICS))}")
        if METRICS[metric].writes:
            raise LaminaError(
                f"metrics: '{metric}' counts written answers, but questions with choices and texts "
                "have none. Use lamina.select on a prepared task, or metric accuracy."
            )


def _tokenise(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[str | Question],
    length: int,
) -> list[Sample]:
    """Samples in the workflow's form; questions are encoded as in lm-eval."""
    texts = [sample for sample in samples if isinstance(sample, str)]
    if not samples or 0 < len(texts) < len(samples):
        raise LaminaError(
            "samples: give at least one question (context, choices, gold), or at least one text, "
            "but not both."
        )
    if texts:
        return text_samples(texts, tokenizer, length)
    encoder = encoding.open_encoder(model, tokenizer)
    return [
        _encode_question(index, cast(Question, question), encoder)
        for index, question in enumerate(samples)
    ]


def _encode_question(index: int, question: Question, encoder: encoding.EncodingLM) -> Sample:
    """The sample of a question, whose rows are those that lm-eval would score."""
    try:
        context, choices, gold = question
        is_question = 0 <= gold < len(choices)
    except (TypeError, ValueError):
        is_question = False
    if not is_question:
        raise LaminaError(
            f"samples: number {index} is not a question (context, choices, index of the right "
            "choice)."
        )
    rows = tuple(
        encoding.scored_row(encoder, context, f" {choice}", len(choice)) for choice in choices
    )
    content_hash = document_hash(context, list(choices))
    return Sample(index, "choices", gold, rows, content_hash, limit=encoder.max_length)
