"""Benchmark tables with planted answers, of which a test can compute every number of a view."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from lamina_workflow.report import database
from tests.given.plausible_tables import write_tables

Row = dict[str, Any]
# By task: 1 right, 0 wrong. Of tasks whose name begins with `text`: nats per token.
ValuesByTask = Mapping[str, np.ndarray]

BASE_KEY: Row = {
    "model": "m",
    "calibration": "none",
    "selector": "none",
    "removed": 0,
    "repair": "none",
    "healing": "none",
}


def variant_key(
    calibration: str, selector: str = "s", removed: int = 1, repair: str = "none"
) -> Row:
    return BASE_KEY | {
        "calibration": calibration,
        "selector": selector,
        "removed": removed,
        "repair": repair,
    }


def share_stderr(variant_answers: np.ndarray, base_answers: np.ndarray) -> float:
    """Standard error of the share of the base model's right answers that a variant keeps.

    Computed with one more document that differs each way.
    """
    share = variant_answers.mean() / base_answers.mean()
    squares = ((variant_answers - share * base_answers) ** 2).sum() + 1 + share**2
    n_documents = len(base_answers)
    return float(squares**0.5 / (n_documents + 2) / base_answers.mean())


def extra_share_stderr(
    variant_answers: np.ndarray, base_answers: np.ndarray, chance: float = 0.25
) -> float:
    """What is added to that standard error because the base model itself was measured.

    It is how much the share would rise over a base model that is worse than measured.
    """
    accuracy = base_answers.mean()
    n_documents = len(base_answers)
    measured_stderr = base_answers.std(ddof=1) / n_documents**0.5
    stderr_at_chance = (chance * (1 - chance) / n_documents) ** 0.5
    stderr = max(measured_stderr, stderr_at_chance)
    reach = stderr * np.clip(15 * stderr / (accuracy - chance), 1.959964, 3)

    right_of_right = variant_answers[base_answers == 1].mean()
    has_wrong = (base_answers == 0).any()
    right_of_wrong = variant_answers[base_answers == 0].mean() if has_wrong else 0
    slope = right_of_right - right_of_wrong
    share = variant_answers.mean() / accuracy
    rise = abs(share - slope) * reach / (accuracy - reach)
    return float(max(0, rise / 1.959964 - abs(share - slope) * stderr / accuracy))


def benchmark_rows(
    key: Mapping[str, Any], values_by_task: ValuesByTask
) -> tuple[list[Row], list[Row]]:
    """Rows of the tables `benchmarks` and `benchmark_samples` of one variant."""
    score_rows: list[Row] = []
    document_rows: list[Row] = []
    for task, values in values_by_task.items():
        is_text = task.startswith("text")
        mean = float(values.mean())
        stderr = float(values.std(ddof=1) / len(values) ** 0.5)
        score = {
            "task": task,
            "n_samples": len(values),
            "metric": "acc_norm",
            "higher_is_better": True,
            "value": mean,
            "stderr": stderr,
        }
        if is_text:
            perplexity = float(np.exp(mean))
            score["metric"] = "perplexity"
            score["higher_is_better"] = False
            score["value"] = perplexity
            score["stderr"] = perplexity * stderr
        score_rows.append({**key, **score})

        document_metric = "nll" if is_text else "acc_norm"
        for sample, value in enumerate(values):
            document = {
                "task": task,
                "metric": document_metric,
                "sample": sample,
                "value": float(value),
            }
            document_rows.append({**key, **document})
    return score_rows, document_rows


def connect_planted_tables(
    folder: Path,
    base_values: ValuesByTask,
    variants: Iterable[tuple[Mapping[str, Any], ValuesByTask]],
    calibrations: Iterable[Mapping[str, Any]],
    with_documents: bool = True,
    **other_tables: list[Row],
) -> duckdb.DuckDBPyConnection:
    """A connection to the views over such tables.

    Without documents, the tables have the scores and not the answers that they were made of.
    """
    benchmarks: list[Row] = []
    documents: list[Row] = []
    for key, values_by_task in [(BASE_KEY, base_values), *variants]:
        score_rows, document_rows = benchmark_rows(key, values_by_task)
        benchmarks += score_rows
        if with_documents:
            documents += document_rows

    calibration_defaults = {"model": "m", "kind": "choices", "chance_accuracy": 0.25}
    tables = {"models": [{"model": "m", "n_layers": 12}]} | other_tables
    files = write_tables(
        folder,
        calibrations=[{**calibration_defaults, **calibration} for calibration in calibrations],
        benchmarks=benchmarks,
        benchmark_samples=documents,
        **tables,
    )
    return database.connect_views(files)
