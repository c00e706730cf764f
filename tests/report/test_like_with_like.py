"""Numbers stand beside those that they can be compared with: of the same task, the same samples, the same kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina_workflow.report import answers, cautions, database, formatting
from tests.given.planted_tables import BASE_KEY, variant_key
from tests.given.plausible_tables import VIEWS, write_tables


def agreement(metric: str, statistic: str, value: float, calibrations: str) -> dict[str, Any]:
    key = {"model": "m", "component": "layer", "metric": metric, "statistic": statistic}
    ends = {"value": value, "ci_low": value - 0.1, "ci_high": min(1.0, value + 0.1)}
    return key | ends | {"calibrations": calibrations, "n_units": 12, "n_samples": 200}


def write_relevance(folder: Path, orders: dict[str, np.ndarray]) -> list[Path]:
    """Scores of twelve layers on one task; pooled over tasks, margin agrees best with accuracy."""
    rows = [
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
        for metric, scores in orders.items()
        for layer, score in enumerate(scores)
    ]
    agreements = [
        agreement("margin", "spearman", 0.97, "facts, recall"),
        agreement("perplexity", "spearman", 0.7, "facts, recall"),
        agreement("accuracy", "reliability", 0.6, "facts"),
        agreement("margin", "reliability", 0.99, "facts"),
        agreement("perplexity", "reliability", 0.9, "facts"),
    ]
    return write_tables(folder, relevance=rows, agreements=agreements)


ORDER = np.arange(12.0)
NEAR = ORDER[[1, 0, 2, 3, 5, 4, 6, 7, 8, 9, 11, 10]]
FAR = ORDER[[3, 0, 6, 1, 2, 8, 4, 10, 5, 7, 11, 9]]


def test_a_surer_metric_is_named_by_its_agreement_within_the_task(tmp_path: Path) -> None:
    files = write_relevance(tmp_path, {"accuracy": ORDER, "margin": FAR, "perplexity": NEAR})
    assert spearmanr(ORDER, FAR).statistic < 0.8 < spearmanr(ORDER, NEAR).statistic
    with database.connect_views(VIEWS, files) as connection:
        (row,) = answers.answer_question(connection, "how_sure_rankings_are")
        (sentence,) = cautions.describe_reliability(connection)
    assert row["other"] == "perplexity" and row["other_value"] == pytest.approx(0.9)
    known = spearmanr(ORDER, NEAR).statistic
    reach = 1.959964 * np.sqrt((1 + known**2 / 2) / 9)
    low, high = np.tanh(np.arctanh(known) - reach), np.tanh(np.arctanh(known) + reach)
    assert row["other_spearman"] == pytest.approx(known)
    assert (row["other_low"], row["other_high"]) == pytest.approx((low, high))
    assert "perplexity has 0.90 from the same samples" in sentence
    assert f"(rank correlation {known:.2f} [{low:.2f}, {high:.2f}])" in sentence


def test_no_metric_is_named_where_none_agrees_within_the_task(tmp_path: Path) -> None:
    files = write_relevance(tmp_path, {"accuracy": ORDER, "margin": FAR})
    with database.connect_views(VIEWS, files) as connection:
        (row,) = answers.answer_question(connection, "how_sure_rankings_are")
        (sentence,) = cautions.describe_reliability(connection)
    assert row["other"] is None
    assert "margin" not in sentence


def test_each_loss_of_a_search_has_the_unpruned_models_on_the_same_samples(tmp_path: Path) -> None:
    key = {"model": "m", "calibration": "c", "selector": "s", "kept": True, "n_new": 0}
    ends = [
        ("none", 0, "winner", 80, 1.0, []),
        ("none", 0, "held back", 40, 1.2, []),
        ("portfolio", 2, "winner", 80, 1.5, ["3", "4"]),
        ("portfolio", 2, "held back", 40, 1.9, ["3", "4"]),
    ]
    rows = [
        key
        | {"strategy": strategy, "removed": removed, "stage": stage, "n_samples": n_samples}
        | {"loss": loss, "units": units, "evaluation": number, "step": removed}
        for number, (strategy, removed, stage, n_samples, loss, units) in enumerate(ends)
    ]
    with database.connect_views(VIEWS, write_tables(tmp_path, searches=rows)) as connection:
        base, found = answers.answer_question(connection, "what_searching_found")
    assert (found["search_loss"], found["search_loss_base"], found["n_search"]) == (1.5, 1.0, 80)
    assert (found["loss"], found["loss_base"], found["n_samples"]) == (1.9, 1.2, 40)
    assert (base["loss"], base["search_loss"]) == (base["loss_base"], base["search_loss_base"])


def test_blocks_of_joined_documents_are_not_called_texts(tmp_path: Path) -> None:
    facts = {"metric": "perplexity", "stderr": 0.1, "higher_is_better": False, "n_samples": 30}
    versions = {"apart": "window=48 stride=48", "stream": "window=48 joined='\\n\\n'"}
    rows = [
        key | facts | {"task": task, "task_version": version, "value": value}
        for task, version in versions.items()
        for key, value in ((BASE_KEY, 8.0), (variant_key("q"), 9.0))
    ]
    calibrations = [{"model": "m", "calibration": "q", "kind": "choices", "source": "t"}]
    files = write_tables(tmp_path, benchmarks=rows, calibrations=calibrations)
    with database.connect_views(VIEWS, files) as connection:
        (found,) = answers.query_rows(connection, "FROM variants WHERE removed = 1")
    assert (found["text_samples"], found["text_blocks"]) == (60, 30)
    assert formatting.count_text_samples(found) == "30 documents, 30 blocks of joined documents"
    alone = {"text_samples": 30, "text_blocks": 30}
    assert formatting.count_text_samples(alone) == "30 blocks of joined documents"
