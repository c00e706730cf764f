"""A number is next to one of the same task, samples and kind: planted tables, scipy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina_workflow.report import answers, cautions, database, formatting
from tests.given.planted_tables import BASE_KEY, variant_key
from tests.given.plausible_tables import write_tables

# Scores of twelve layers: in order, nearly in this order, and far from it.
ORDER = np.arange(12.0)
NEAR_ORDER = ORDER[[1, 0, 2, 3, 5, 4, 6, 7, 8, 9, 11, 10]]
FAR_ORDER = ORDER[[3, 0, 6, 1, 2, 8, 4, 10, 5, 7, 11, 9]]


def agreement_row(metric: str, statistic: str, value: float, calibrations: str) -> dict[str, Any]:
    return {
        "model": "m",
        "component": "layer",
        "metric": metric,
        "statistic": statistic,
        "value": value,
        "ci_low": value - 0.1,
        "ci_high": min(1.0, value + 0.1),
        "calibrations": calibrations,
        "n_units": 12,
        "n_samples": 200,
    }


def write_relevance(folder: Path, scores_by_metric: dict[str, np.ndarray]) -> list[Path]:
    """Scores of twelve layers on one task; pooled over tasks, margin agrees best with accuracy."""
    relevance = []
    for metric, scores in scores_by_metric.items():
        for layer, score in enumerate(scores):
            relevance.append(
                {
                    "model": "m",
                    "calibration": "facts",
                    "selector": "base",
                    "removed": 0,
                    "metric": metric,
                    "unit": str(layer),
                    "layer": layer,
                    "component": "layer",
                    "score": float(score),
                    "n_samples": 200,
                }
            )
    agreements = [
        agreement_row("margin", "spearman", 0.97, "facts, recall"),
        agreement_row("perplexity", "spearman", 0.7, "facts, recall"),
        agreement_row("accuracy", "reliability", 0.6, "facts"),
        agreement_row("margin", "reliability", 0.99, "facts"),
        agreement_row("perplexity", "reliability", 0.9, "facts"),
    ]
    return write_tables(folder, relevance=relevance, agreements=agreements)


def test_a_more_reliable_metric_is_named_by_its_agreement_within_the_task(tmp_path: Path) -> None:
    scores = {"accuracy": ORDER, "margin": FAR_ORDER, "perplexity": NEAR_ORDER}
    files = write_relevance(tmp_path, scores)

    with database.connect_views(files) as connection:
        [row] = answers.answer_question(connection, "how_sure_rankings_are")
        [sentence] = cautions.describe_reliability(connection)

    correlation = spearmanr(ORDER, NEAR_ORDER).statistic
    margin_correlation = spearmanr(ORDER, FAR_ORDER).statistic
    assert margin_correlation < 0.8 < correlation
    # The interval of Bonett and Wright, on Fisher's scale.
    reach = 1.959964 * np.sqrt((1 + correlation**2 / 2) / 9)
    low = np.tanh(np.arctanh(correlation) - reach)
    high = np.tanh(np.arctanh(correlation) + reach)
    assert row["other"] == "perplexity"
    assert row["other_value"] == pytest.approx(0.9)
    assert row["other_spearman"] == pytest.approx(correlation)
    assert row["other_low"] == pytest.approx(low)
    assert row["other_high"] == pytest.approx(high)
    assert "On the same samples, perplexity has 0.90" in sentence
    assert f"(rank correlation {correlation:.2f} [{low:.2f}, {high:.2f}])" in sentence


def test_no_metric_is_named_where_none_agrees_within_the_task(tmp_path: Path) -> None:
    files = write_relevance(tmp_path, {"accuracy": ORDER, "margin": FAR_ORDER})

    with database.connect_views(files) as connection:
        [row] = answers.answer_question(connection, "how_sure_rankings_are")
        [sentence] = cautions.describe_reliability(connection)

    assert row["other"] is None
    assert "margin" not in sentence


def search_row(removed: int, stage: str, loss: float) -> dict[str, Any]:
    """The last measurement of a search: 80 samples decided, 40 were held back."""
    return {
        "model": "m",
        "calibration": "c",
        "selector": "s",
        "strategy": "portfolio" if removed else "none",
        "removed": removed,
        "step": removed,
        "stage": stage,
        "units": ["3", "4"][:removed],
        "loss": loss,
        "kept": True,
        "n_new": 0,
        "n_samples": 80 if stage == "winner" else 40,
    }


def test_a_loss_of_a_search_is_next_to_the_base_models_on_the_same_samples(tmp_path: Path) -> None:
    rows = [
        search_row(0, "winner", 1.0),
        search_row(0, "held back", 1.2),
        search_row(2, "winner", 1.5),
        search_row(2, "held back", 1.9),
    ]
    for evaluation, row in enumerate(rows):
        row["evaluation"] = evaluation
    files = write_tables(tmp_path, searches=rows)

    with database.connect_views(files) as connection:
        base, pruned = answers.answer_question(connection, "what_searching_found")

    assert pruned["search_loss"] == 1.5
    assert pruned["search_loss_base"] == 1.0
    assert pruned["n_search"] == 80
    assert pruned["loss"] == 1.9
    assert pruned["loss_base"] == 1.2
    assert pruned["n_samples"] == 40
    assert base["loss"] == base["loss_base"]
    assert base["search_loss"] == base["search_loss_base"]


def test_blocks_of_joined_documents_are_not_called_texts(tmp_path: Path) -> None:
    measured = {"metric": "perplexity", "stderr": 0.1, "higher_is_better": False, "n_samples": 30}
    documents = measured | {"task": "apart", "task_version": "window=48 stride=48"}
    blocks = measured | {"task": "stream", "task_version": "window=48 joined='\\n\\n'"}
    benchmarks = []
    for text in (documents, blocks):
        benchmarks.append(BASE_KEY | text | {"value": 8.0})
        benchmarks.append(variant_key("q") | text | {"value": 9.0})
    calibration = {"model": "m", "calibration": "q", "kind": "choices", "source": "t"}
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=[calibration])

    with database.connect_views(files) as connection:
        [row] = answers.query_rows(connection, "FROM variants WHERE removed = 1")

    assert row["text_samples"] == 60
    assert row["text_blocks"] == 30
    assert formatting.count_text_samples(row) == "30 documents, 30 blocks of joined documents"


def test_blocks_alone_are_counted_without_documents() -> None:
    row = {"text_samples": 30, "text_blocks": 30}

    assert formatting.count_text_samples(row) == "30 blocks of joined documents"
