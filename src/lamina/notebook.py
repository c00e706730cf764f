"""`lamina.sweep` and `lamina.results`: what the workflow measures, in a notebook."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import duckdb
import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.config.explain import nearest
from lamina.config.metrics import METRICS, MODULES
from lamina.data import calibrations, encoding
from lamina.data.calibrations import Sample
from lamina.data.overlap import document_hash
from lamina.data.prepare import text_samples
from lamina.engine import memory
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT
from lamina.errors import LaminaError
from lamina.models.units import COMPONENTS, all_units
from lamina.modules import load
from lamina.relevance.columns import Context
from lamina.relevance.score import relevance
from lamina.report import database
from lamina.store import parquet

Question = tuple[str, Sequence[str], int]


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
    """Measure the removal of every layer of a model, or of every half of a layer.

    model, tokenizer: From transformers or `lamina.load`. The model is as before afterwards.
    samples: Multiple-choice questions, each (context, choices, index of the right choice), or texts; not both. A choice
        follows its context after a space.
    units: What is removed one at a time: `layer`, `attention` or `mlp`.
    metrics: Names of relevance metrics (docs/choose.md).
    length: Tokens of a text that are read, from its beginning.
    seed: Of the bootstrap behind the intervals.

    Returns pyarrow.Table: One row per metric and unit: `score`, its 95 % interval `ci_low` to `ci_high`, `rank` (1 is
    the least relevant), `n_samples`, and the `reason` if there is no score. The columns are those of table `relevance`
    (docs/tables.md).

    Raises LaminaError if there are no samples, a sample is neither a question nor a text, an option is not known, or
    the engine does not give this model's own numbers.
    """
    if units not in COMPONENTS:
        raise LaminaError(f"units: '{units}' is not known. Write one of: {', '.join(COMPONENTS)}.")
    for metric in metrics:
        if metric not in METRICS:
            raise LaminaError(f"metrics: '{metric}' is not known. {nearest(metric, list(METRICS))}")
    was_training = model.training  # lm-eval's encoder changes it
    read = _tokenised(model, tokenizer, list(samples), length)
    embedding: Any = model.get_input_embeddings()
    context = Context(calibrations.chance_accuracy(read, embedding.weight.shape[0]), seed=seed)
    names = all_units(engine.layer_count(model), units)
    model.eval()
    rows = []
    try:
        # One pass may measure several metrics.
        for pass_ in dict.fromkeys(METRICS[metric].pass_ for metric in metrics):
            measured = parquet.from_rows("sweeps", _measured(model, read, names, pass_))
            rows += relevance(
                measured, [m for m in metrics if METRICS[m].pass_ == pass_], context, seed
            )
    finally:
        model.train(was_training)
    # A notebook has one of each.
    return parquet.from_rows("relevance", rows).drop_columns(
        ["model", "calibration", "selector", "removed"]
    )


def _measured(
    model: PreTrainedModel, samples: Sequence[Sample], units: Sequence[str], pass_: str
) -> Iterable[dict[str, object]]:
    """Rows of table `sweeps` without its keys."""
    tokens = memory.tokens("auto", model, samples, len(units) + 2)
    if pass_ in MODULES:
        return list(load(MODULES[pass_]).rows(model, samples, units, [], pass_, tokens))
    scores = engine.sweep(
        model, samples, units, pass_="removal" if pass_ == "removal" else "stream", tokens=tokens
    )
    return scores.rows([CURRENT, *units])


def _tokenised(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[str | Question],
    length: int,
) -> list[Sample]:
    """Samples as the workflow has them; questions as lm-eval encodes them."""
    texts = [sample for sample in samples if isinstance(sample, str)]
    if not samples or 0 < len(texts) < len(samples):
        raise LaminaError(
            "samples: give questions (context, choices, gold), or texts, and at least one."
        )
    if texts:
        return text_samples(texts, tokenizer, length)
    lm, found = encoding.recorder(model, tokenizer), []
    for number, question in enumerate(samples):
        try:
            context, choices, gold = cast(Question, question)
            if not 0 <= gold < len(choices):
                raise ValueError
        except (TypeError, ValueError):
            raise LaminaError(
                f"samples: number {number} is not a question (context, choices, index of the right choice)."
            ) from None
        rows = tuple(
            encoding.scored_row(lm, context, f" {choice}", len(choice)) for choice in choices
        )
        found.append(
            Sample(
                number,
                "choices",
                gold,
                rows,
                document_hash(context, list(choices)),
                limit=lm.max_length,
            )
        )
    return found


def results(folder: str | Path = "results") -> duckdb.DuckDBPyConnection:
    """The tables of a run (docs/tables.md) as a DuckDB connection, read-only.

    Raises LaminaError if the folder holds no database, or a damaged one.
    """
    return database.open_database(Path(folder) / "lamina.duckdb")
