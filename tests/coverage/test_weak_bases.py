"""What is kept of a weak base model has an interval that holds, or the words `too few` instead.

Shares are shown where the base model is above chance. Of weak base models these are the lucky
measurements, so coverage is counted among the studies that show an interval.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows
from tests.coverage.examples import Z95, three_errors
from tests.given.planted_tables import BASE_KEY, benchmark_rows, variant_key
from tests.given.plausible_tables import write_tables

Answers = tuple[np.ndarray, np.ndarray]
"""Right (1) and wrong (0) answers of a base model and of a variant, (documents,) each."""
Row = dict[str, Any]


def draw_answers(
    generator: np.random.Generator, n_documents: int, accuracy: float, lost: float, won: float
) -> Answers:
    """The variant loses and wins such shares of the base model's right and wrong answers."""
    base = generator.random(n_documents) < accuracy
    is_changed = generator.random(n_documents) < np.where(base, lost, won)
    return base.astype(float), (base ^ is_changed).astype(float)


def is_clear(base_answers: np.ndarray, chance: float) -> bool:
    """Whether the accuracy is four standard errors above chance."""
    n_documents = len(base_answers)
    deviation = max(base_answers.std(ddof=1), (chance * (1 - chance)) ** 0.5)
    return bool(base_answers.mean() - 4 * deviation / n_documents**0.5 > chance)


def query_variant_scores(folder: Path, studies: list[Answers], chance: float) -> list[Row]:
    """Rows of view `scores` of the variants; each study is a model of its own."""
    benchmarks: list[Row] = []
    samples: list[Row] = []
    calibrations: list[Row] = []
    for study, (base_answers, variant_answers) in enumerate(studies):
        model = {"model": f"m{study}"}
        for keys, answers in ((BASE_KEY, base_answers), (variant_key("c"), variant_answers)):
            score_rows, answer_rows = benchmark_rows(keys | model, {"t": answers})
            benchmarks += score_rows
            samples += answer_rows
        facts = {"calibration": "c", "kind": "choices", "source": "t", "chance_accuracy": chance}
        calibrations.append(model | facts)
    files = write_tables(
        folder, benchmarks=benchmarks, benchmark_samples=samples, calibrations=calibrations
    )
    return query_rows(database.connect_views(files), "FROM scores WHERE removed > 0")


def coverage(rows: list[Row], column: str, truth: float) -> float:
    """Share of the intervals that hold the truth."""
    is_held = [abs(row[column] - truth) <= Z95 * row[f"{column}_stderr"] for row in rows]
    return float(np.mean(is_held))


def true_shares(accuracy: float, lost: float, won: float, chance: float) -> dict[str, float]:
    """What the variant keeps of the base model's accuracy, and of what of it is above chance."""
    variant_accuracy = accuracy * (1 - lost) + (1 - accuracy) * won
    return {
        "kept": variant_accuracy / accuracy,
        "kept_above_chance": (variant_accuracy - chance) / (accuracy - chance),
    }


@pytest.mark.parametrize(("accuracy", "chance"), [(0.3, 0.25), (0.6, 0.5)])
def test_of_few_documents_of_a_weak_base_no_share_has_an_interval(
    tmp_path: Path, accuracy: float, chance: float
) -> None:
    """Intervals would hold 76 to 90 % of the shares, and 50 to 85 % of those above chance."""
    n_studies = 150
    generator = np.random.default_rng(0)
    studies = [draw_answers(generator, 30, accuracy, 0.5, 0.2) for _ in range(n_studies)]

    rows = query_variant_scores(tmp_path, studies, chance)

    assert len(rows) == n_studies
    for row in rows:
        study = int(row["model"].removeprefix("m"))
        base_answers, _ = studies[study]
        if row["at_chance"]:
            assert row["kept"] is None
            assert row["kept_reason"] == "at chance"
        elif not is_clear(base_answers, chance):
            assert row["kept"] is not None
            assert row["kept_stderr"] is row["kept_above_chance_stderr"] is None
            assert row["kept_reason"] == "too few"
    n_with_interval = sum(row["kept_stderr"] is not None for row in rows)
    assert n_with_interval <= 0.05 * n_studies


def test_an_interval_that_is_shown_holds_although_only_lucky_bases_show_one(tmp_path: Path) -> None:
    """One study in eight does; without regard to that, 62 % would hold the share above chance."""
    assert_coverage_of_clear_bases(
        tmp_path, accuracy=0.4, chance=0.25, n_documents=100, lost=0.5, won=0.2, n_studies=150
    )


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "won"), [(0.1, 0.02), (0.3, 0.1), (0.5, 0.2), (0.05, 0.15)])
@pytest.mark.parametrize(
    ("accuracy", "chance", "n_documents"),
    [
        (0.4, 0.25, 100),
        (0.6, 0.25, 30),
        (0.35, 0.25, 300),
        (0.9, 0.25, 60),
        (0.65, 0.5, 100),
        (0.7, 0.5, 60),
        (0.6, 0.5, 300),
        (0.8, 0.5, 30),
        (0.95, 0.5, 300),
    ],
)
def test_intervals_that_are_shown_hold(
    tmp_path: Path, accuracy: float, chance: float, n_documents: int, lost: float, won: float
) -> None:
    assert_coverage_of_clear_bases(
        tmp_path, accuracy, chance, n_documents, lost, won, n_studies=400
    )


def assert_coverage_of_clear_bases(
    folder: Path,
    accuracy: float,
    chance: float,
    n_documents: int,
    lost: float,
    won: float,
    n_studies: int,
) -> None:
    """At least 93 % of the shown intervals hold the truth, but for what so few studies can tell."""
    generator = np.random.default_rng(n_documents)
    studies: list[Answers] = []
    while len(studies) < n_studies:
        base_answers, variant_answers = draw_answers(generator, n_documents, accuracy, lost, won)
        if is_clear(base_answers, chance):
            studies.append((base_answers, variant_answers))

    rows = query_variant_scores(folder, studies, chance)

    assert all(row["kept_reason"] is None for row in rows)
    least = 0.93 - three_errors(0.95, n_studies)
    for column, truth in true_shares(accuracy, lost, won, chance).items():
        assert coverage(rows, column, truth) >= least, column
