"""Whether what is kept of a weak base model has an interval that holds, or the words `too few`
instead of one.

Shares are shown where the base model is above chance. Of weak base models these are the lucky
measurements, so coverage is counted among the studies that show an interval.
"""

from pathlib import Path

import numpy as np
import pytest

from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows
from tests.given.planted_tables import BASE_KEY, benchmark_rows, variant_key
from tests.given.plausible_tables import VIEWS, write_tables

Z95 = 1.959964
Answers = tuple[np.ndarray, np.ndarray]


def draw_answers(
    rng: np.random.Generator, n_documents: int, accuracy: float, lost: float, won: float
) -> Answers:
    """Right (1) and wrong (0) answers of a base model and of a variant, which loses and wins such
    shares of them.
    """
    base = rng.random(n_documents) < accuracy
    changed = rng.random(n_documents) < np.where(base, lost, won)
    return base.astype(float), (base ^ changed).astype(float)


def is_clear(base: np.ndarray, chance: float) -> bool:
    """Whether the accuracy is four standard errors above chance."""
    n_documents = len(base)
    error = max(base.std(ddof=1), (chance * (1 - chance)) ** 0.5) / n_documents**0.5
    return bool(base.mean() - 4 * error > chance)


def scores(folder: Path, studies: list[Answers], chance: float) -> list[dict]:
    """Rows of view `scores` of the variants; each study is a model of its own."""
    benchmarks: list[dict] = []
    samples: list[dict] = []
    calibrations = []
    for number, (base, found) in enumerate(studies):
        model = {"model": f"m{number}"}
        for key, answers in ((BASE_KEY, base), (variant_key("c"), found)):
            values, documents = benchmark_rows(key | model, {"t": answers})
            benchmarks += values
            samples += documents
        facts = dict(calibration="c", kind="choices", source="t", chance_accuracy=chance)
        calibrations.append(model | facts)
    files = write_tables(
        folder, benchmarks=benchmarks, benchmark_samples=samples, calibrations=calibrations
    )
    return query_rows(database.connect_views(VIEWS, files), "FROM scores WHERE removed > 0")


def coverage(found: list[dict], column: str, truth: float) -> float:
    """Share of the intervals that hold the truth."""
    inside = [abs(row[column] - truth) <= Z95 * row[f"{column}_stderr"] for row in found]
    return float(np.mean(inside))


def true_shares(accuracy: float, lost: float, won: float, chance: float) -> dict[str, float]:
    """What the variant keeps of the base model's accuracy, and of what of it is above chance."""
    left = accuracy * (1 - lost) + (1 - accuracy) * won
    return {
        "kept": left / accuracy,
        "kept_above_chance": (left - chance) / (accuracy - chance),
    }


@pytest.mark.parametrize(("accuracy", "chance", "n"), [(0.3, 0.25, 30), (0.6, 0.5, 30)])
def test_of_few_documents_of_a_weak_base_no_share_has_an_interval(
    tmp_path: Path, accuracy: float, chance: float, n: int
) -> None:
    """Of the intervals that were shown before, 76 to 90 % held the share, and 50 to 85 % that above
    chance.
    """
    rng = np.random.default_rng(0)
    studies = [draw_answers(rng, n, accuracy, 0.5, 0.2) for _ in range(150)]
    found = scores(tmp_path, studies, chance)
    assert len(found) == 150
    for row, (base, _) in zip(
        sorted(found, key=lambda row: int(row["model"][1:])), studies, strict=True
    ):
        if row["at_chance"]:
            assert (row["kept"], row["kept_reason"]) == (None, "at chance")
        elif not is_clear(base, chance):
            assert (row["kept_stderr"], row["kept_reason"]) == (None, "too few")
            assert row["kept"] is not None and row["kept_above_chance_stderr"] is None
    assert sum(row["kept_stderr"] is not None for row in found) <= 0.05 * len(found)


def test_an_interval_that_is_shown_holds_although_only_lucky_bases_show_one(tmp_path: Path) -> None:
    """One study in eight shows one; without regard to that 62 % would hold the share above
    chance.
    """
    check_coverage(tmp_path, accuracy=0.4, chance=0.25, n=100, lost=0.5, won=0.2, n_studies=150)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "won"), [(0.1, 0.02), (0.3, 0.1), (0.5, 0.2), (0.05, 0.15)])
@pytest.mark.parametrize(
    ("accuracy", "chance", "n"),
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
    tmp_path: Path, accuracy: float, chance: float, n: int, lost: float, won: float
) -> None:
    check_coverage(tmp_path, accuracy, chance, n, lost, won, n_studies=400)


def check_coverage(
    folder: Path, accuracy: float, chance: float, n: int, lost: float, won: float, n_studies: int
) -> None:
    """At least 93 % of the shown intervals hold the truth, but for what so few studies can tell."""
    rng = np.random.default_rng(n)
    studies: list[Answers] = []
    while len(studies) < n_studies:
        answers = draw_answers(rng, n, accuracy, lost, won)
        if is_clear(answers[0], chance):
            studies.append(answers)
    found = scores(folder, studies, chance)
    assert {row["kept_reason"] for row in found} == {None}
    least = 0.93 - 3 * (0.05 * 0.95 / n_studies) ** 0.5
    for column, truth in true_shares(accuracy, lost, won, chance).items():
        assert coverage(found, column, truth) >= least, column
