"""What is kept, of tasks and of general text, and its errors: one definition each, with numpy."""

from pathlib import Path

import duckdb
import numpy as np
import pytest

from lamina_workflow.report import database, ending, queries
from lamina_workflow.report.answers import query_rows, recommendations
from tests.given.planted_tables import (
    BASE_KEY,
    connect_planted_tables,
    extra_share_stderr,
    share_stderr,
    variant_key,
)
from tests.given.plausible_tables import write_tables

CHANCE = 0.25


def random_answers(rng: np.random.Generator, accuracy: float, n: int = 400) -> np.ndarray:
    return (rng.random(n) < accuracy).astype(float)


def stderr_of_mean(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


@pytest.fixture(scope="module")
def run_without_errors(
    tmp_path_factory: pytest.TempPathFactory,
) -> duckdb.DuckDBPyConnection:
    """A task that gives no standard error, and a perplexity that overflows."""
    task = dict(task="t", metric="acc", n_samples=400, higher_is_better=True, stderr=None)
    text = dict(task="text", metric="perplexity", n_samples=80, higher_is_better=False, stderr=0.1)
    benchmarks = [
        BASE_KEY | task | dict(value=0.9),
        BASE_KEY | text | dict(value=4.0),
        variant_key("c") | task | dict(value=0.85),
        variant_key("c") | text | dict(value=float("inf")),
        variant_key("c", repair="ghost") | task | dict(value=0.95),
    ]
    calibration = dict(
        model="m", calibration="c", kind="choices", source="t", chance_accuracy=CHANCE
    )
    folder = tmp_path_factory.mktemp("without_errors")
    files = write_tables(folder, benchmarks=benchmarks, calibrations=[calibration])
    return database.connect_views(files)


def test_errors_of_shares_that_are_unknown_stay_unknown(run_without_errors):
    scores = query_rows(run_without_errors, "FROM scores WHERE removed = 1 AND repair = 'none'")
    [gain] = query_rows(run_without_errors, "FROM repairs")

    score_by_task = {score["task"]: score for score in scores}
    assert score_by_task["t"]["change_stderr"] is None
    assert score_by_task["t"]["kept_stderr"] is None
    assert score_by_task["text"]["kept"] == 0
    assert score_by_task["text"]["kept_stderr"] is None
    assert gain["gain_stderr"] is None
    assert gain["loss_stderr"] is None


def test_errors_of_variants_that_are_unknown_stay_unknown(run_without_errors):
    [bare] = query_rows(run_without_errors, "FROM variants WHERE removed = 1 AND repair = 'none'")

    assert bare["text_ratio"] == float("inf")
    assert bare["text_ratio_stderr"] is None
    assert bare["own_stderr"] is None


@pytest.mark.parametrize(
    "question", ["what_repair_gave_back", "what_pruning_for_one_task_costs_the_others"]
)
def test_nothing_is_certain_where_errors_are_unknown(run_without_errors, question):
    sql = queries.read_query(question)

    assert {row["certain"] for row in query_rows(run_without_errors, sql)} == {None}


def test_a_recommendation_without_errors_is_not_called_certain(run_without_errors):
    [card] = recommendations(run_without_errors, 0.95, None)

    assert card["kept_enough"]
    assert card["kept_stderr"] is None
    assert card["certain"] is None


def test_tasks_at_chance_are_kept_nowhere(tmp_path):
    """One real task at 89 % and two at chance: nothing is kept of what was not there."""
    rng = np.random.default_rng(2)
    base = {
        "t": random_answers(rng, 0.9),
        "guess": random_answers(rng, CHANCE),
        "guess_too": random_answers(rng, CHANCE),
    }
    pruned = {
        "t": base["t"] * random_answers(rng, 0.89),
        "guess": random_answers(rng, 0.27),
        "guess_too": random_answers(rng, 0.26),
    }
    variants = [(variant_key(task), pruned) for task in base]
    calibrations = [dict(calibration=task, source=task) for task in base]
    run = connect_planted_tables(tmp_path, base, variants, calibrations)

    variant_rows = query_rows(run, "FROM variants WHERE removed = 1")
    cards = recommendations(run, 0.95, None)

    kept = pytest.approx(pruned["t"].mean() / base["t"].mean())
    for row in variant_rows:
        assert row["mean_kept"] == kept
        assert row["n_tasks"] == 1
        assert row["n_at_chance"] == 2
    own_kept = {row["calibration"]: row["own_kept"] for row in variant_rows}
    own_at_chance = {row["calibration"]: row["own_at_chance"] for row in variant_rows}
    assert own_kept == {"t": kept, "guess": None, "guess_too": None}
    assert own_at_chance == {"t": False, "guess": True, "guess_too": True}
    # A mean over tasks has no card: only one task is above chance.
    assert {card["question"] for card in cards} == {"task"}
    at_chance = {card["name"]: card["at_chance"] for card in cards}
    assert at_chance == {"t": False, "guess": True, "guess_too": True}
    assert not any(card["kept_enough"] for card in cards)


class ThreeDraws:
    """Three draws of a calibration for task t with 400 test documents, and one for task u."""

    DRAWS = ("c", "c.2", "c.3")

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.base = {
            "t": random_answers(rng, 0.9),
            "u": random_answers(rng, 0.8),
            "text": rng.gamma(4, 0.4, 60),
        }
        difficulty = rng.random(400)
        # By draw: the answers to task t.
        self.draw_answers = {
            draw: (difficulty + rng.normal(0, 0.05, 400) < 0.7).astype(float) for draw in self.DRAWS
        }
        self.u_answers = self.base["u"] * random_answers(rng, 0.9)

    def write(self, folder: Path, with_documents: bool) -> duckdb.DuckDBPyConnection:
        text = self.base["text"] + 0.1
        variants = [(variant_key("other"), {"u": self.u_answers, "text": text})]
        calibrations = [dict(calibration="other", source="u")]
        for draw, right in self.draw_answers.items():
            variants.append((variant_key(draw), {"t": right, "text": text}))
            calibrations.append(dict(calibration=draw, source="t", replicate_of="c"))
        return connect_planted_tables(folder, self.base, variants, calibrations, with_documents)

    def kept_shares(self) -> list[float]:
        """The share that each draw keeps of task t."""
        return [right.mean() / self.base["t"].mean() for right in self.draw_answers.values()]

    def accuracy_stderr(self) -> float:
        """The error of the mean over four calibrations, of which three share their documents."""
        mean_answers = np.mean(list(self.draw_answers.values()), axis=0)
        return np.hypot(3 * stderr_of_mean(mean_answers), stderr_of_mean(self.u_answers)) / 4

    def unpaired_accuracy_stderr(self) -> float:
        """The error if each draw had had documents of its own."""
        draw_stderr = 3**0.5 * stderr_of_mean(self.draw_answers["c"])
        return np.hypot(draw_stderr, stderr_of_mean(self.u_answers)) / 4

    def largest_accuracy_stderr(self) -> float:
        """The error if the draws erred together on every document."""
        draw_stderr = sum(stderr_of_mean(right) for right in self.draw_answers.values())
        return np.hypot(draw_stderr, stderr_of_mean(self.u_answers)) / 4

    def kept_stderr(self) -> float:
        """The error of the mean share kept: the covariance of the draws, and the base's luck."""
        base = self.base["t"]
        base_accuracy = base.mean()
        kept = self.kept_shares()
        residuals = [
            (right - share * base) / base_accuracy
            for right, share in zip(self.draw_answers.values(), kept, strict=True)
        ]
        one_more_document = (1 + np.outer(kept, kept)) / (402 * base_accuracy) ** 2
        covariance = np.cov(residuals) / 400 + one_more_document
        variances = [share_stderr(right, base) ** 2 for right in self.draw_answers.values()]
        np.fill_diagonal(covariance, variances)
        u_variance = share_stderr(self.u_answers, self.base["u"]) ** 2
        lucks = [extra_share_stderr(right, base) for right in self.draw_answers.values()]
        lucks.append(extra_share_stderr(self.u_answers, self.base["u"]))
        return np.sqrt(covariance.sum() + u_variance) / 4 + np.mean(lucks)


@pytest.mark.parametrize("with_documents", [True, False])
def test_draws_of_a_calibration_share_their_test_documents(tmp_path, with_documents):
    """Accuracy and its error over 400 documents, not 1,200."""
    draws = ThreeDraws()
    run = draws.write(tmp_path, with_documents)

    [frontier] = query_rows(run, "FROM frontier")
    [recipe] = [card for card in recommendations(run, 0.5, None) if card["question"] == "recipe"]

    assert frontier["n_calibrations"] == 4
    assert frontier["n_samples"] == 800
    assert recipe["n_tasks"] == 4
    assert recipe["n_samples"] == 800
    u_kept = draws.u_answers.mean() / draws.base["u"].mean()
    assert recipe["kept"] == pytest.approx(np.mean([*draws.kept_shares(), u_kept]))
    if with_documents:
        assert frontier["accuracy_stderr"] == pytest.approx(draws.accuracy_stderr())
        assert frontier["accuracy_stderr"] > draws.unpaired_accuracy_stderr() / 0.75
        assert recipe["kept_stderr"] == pytest.approx(draws.kept_stderr())
    else:
        assert frontier["accuracy_stderr"] == pytest.approx(draws.largest_accuracy_stderr())
        assert recipe["kept_stderr"] > draws.kept_stderr()


def test_a_share_of_a_weak_base_is_said_to_have_too_few_documents(tmp_path):
    """Half of 60 questions right at a chance of a quarter: 3.9 standard errors above it."""
    base = {"t": np.repeat([1.0, 0.0], 30)}
    plan = dict(model="m", calibration="c", selector="s", removed=1, unit="3", position=1)
    calibration = dict(calibration="c", source="t")
    run = connect_planted_tables(
        tmp_path / "tables", base, [(variant_key("c"), base)], [calibration], plans=[plan]
    )

    [score] = query_rows(run, "FROM scores WHERE removed = 1")
    [card] = recommendations(run, 0.95, None)
    best_line = ending.summarise_run(tmp_path)[0]

    assert score["kept"] == 1
    assert score["kept_stderr"] is None
    assert score["kept_reason"] == "too few"
    assert card["kept_reason"] == "too few"
    assert card["certain"] is None
    assert "keeps 100.0 % of t (60 documents, too few for an interval)" in best_line
