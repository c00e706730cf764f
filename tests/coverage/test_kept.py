"""Whether intervals and the word `certain` hold, over many planted studies of what variants keep.

A study is a model of its own in one set of tables, so that the views answer for all of them
together.
"""

from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pytest
from scipy.stats import norm

from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows
from tests.coverage.examples import Z95, three_errors
from tests.given.plausible_tables import write_tables

pytestmark = pytest.mark.slow

KEPT_SHARE = 0.95
"""What a variant has to keep of the base model's accuracy."""
N_VARIANTS = 35
BASE_KEYS = {
    "calibration": "none",
    "selector": "none",
    "removed": 0,
    "repair": "none",
    "healing": "none",
}
CUT_KEYS = BASE_KEYS | {"calibration": "c", "selector": "s", "removed": 2}
Row = dict[str, Any]


class Answers(NamedTuple):
    """Right (1) and wrong (0) answers to the same documents."""

    base: np.ndarray
    """(documents,)."""
    variants: np.ndarray
    """(variants, documents)."""


def draw_answers(
    generator: np.random.Generator, n_documents: int, kept_share: float, likeness: float
) -> Answers:
    """All variants keep the same share of the base model's accuracy of .8.

    They get a tenth of what was wrong right. With more `likeness` they lose the same documents.
    """
    base = generator.random(n_documents) < 0.8
    common_luck = generator.standard_normal(n_documents)
    own_luck = generator.standard_normal((N_VARIANTS, n_documents))
    luck = norm.cdf(likeness**0.5 * common_luck + (1 - likeness) ** 0.5 * own_luck)
    won_share = 0.1
    lost_share = (0.8 * (1 - kept_share) + 0.2 * won_share) / 0.8
    variants = np.where(base, luck > lost_share, luck < won_share)
    return Answers(base.astype(float), variants.astype(float))


class Lead(NamedTuple):
    """How far variants are above a threshold, their standard errors, and the least step."""

    lead: np.ndarray
    error: np.ndarray
    step: np.ndarray


def lead_over_threshold(answers: Answers) -> Lead:
    """How far the kept shares of variants are above `KEPT_SHARE`."""
    n_documents = len(answers.base)
    base_accuracy = answers.base.mean()
    kept = answers.variants.mean(axis=1) / base_accuracy
    residuals = answers.variants - kept[:, None] * answers.base
    error = residuals.std(axis=1, ddof=1) / n_documents**0.5 / base_accuracy
    step = np.full(len(kept), 1 / answers.base.sum())
    return Lead(kept - KEPT_SHARE, error, step)


def is_certain(lead: Lead, n_tried: int) -> np.ndarray:
    """What the macro `certain` says of each variant, one of so many that were tried."""
    columns = {name: values.ravel() for name, values in lead._asdict().items()}
    with database.connect_views([]) as connection:
        connection.register("tried", columns)
        answer = connection.execute(
            f"SELECT certain(lead, error, step, {n_tried}) AS is_certain FROM tried"
        ).fetchnumpy()
    return np.asarray(answer["is_certain"], dtype=bool).reshape(lead.lead.shape)


def stack_leads(leads: list[Lead]) -> Lead:
    """Leads of many studies as one, (studies, variants)."""
    return Lead(*np.array(leads).transpose(1, 0, 2))


@pytest.mark.parametrize("likeness", [0.0, 0.6])
@pytest.mark.parametrize("kept_share", [0.94, 0.945, 0.9499])
@pytest.mark.parametrize("n_documents", [150, 600])
def test_the_best_of_many_that_keep_too_little_is_hardly_ever_certain(
    n_documents: int, kept_share: float, likeness: float
) -> None:
    """Some variant nearly always looks good enough; in one study of forty one may be certain.

    An interval that ignores the number of variants would be certain in one study of twelve.
    """
    n_studies = 400
    generator = np.random.default_rng(0)
    leads: list[Lead] = []
    for _ in range(n_studies):
        answers = draw_answers(generator, n_documents, kept_share, likeness)
        leads.append(lead_over_threshold(answers))
    lead = stack_leads(leads)

    certain_share = is_certain(lead, N_VARIANTS).any(axis=1).mean()

    named_share = (lead.lead >= 0).any(axis=1).mean()
    naive_share = (lead.lead > Z95 * lead.error).any(axis=1).mean()
    assert named_share > 0.85
    assert naive_share > 0.08
    assert certain_share <= 0.025 + 2 / 3 * three_errors(0.025, n_studies)


def test_certain_is_said_where_enough_is_kept() -> None:
    """Power: over 1,500 documents, 99.5 % is nearly always certain to be at least 95 %."""
    generator = np.random.default_rng(1)
    leads: list[Lead] = []
    for _ in range(100):
        answers = draw_answers(generator, 1500, kept_share=0.995, likeness=0.0)
        one_variant = Answers(answers.base, answers.variants[:1])
        leads.append(lead_over_threshold(one_variant))

    assert is_certain(stack_leads(leads), N_VARIANTS).mean() > 0.85


def score_row(keys: Row, answers: np.ndarray) -> Row:
    """A row of table `benchmarks`: the accuracy of a model on task `t`."""
    return keys | {
        "task": "t",
        "metric": "acc",
        "value": float(answers.mean()),
        "stderr": float(answers.std(ddof=1) / len(answers) ** 0.5),
        "n_samples": len(answers),
        "higher_is_better": True,
    }


def text_row(keys: Row, losses: np.ndarray) -> Row:
    """A row of table `benchmarks`: the perplexity of a text."""
    return keys | {
        "task": "text",
        "metric": "perplexity",
        "value": float(np.exp(losses.mean())),
        "stderr": 0.1,
        "n_samples": len(losses),
        "higher_is_better": False,
    }


def answer_rows(keys: Row, answers: np.ndarray) -> list[Row]:
    """Rows of table `benchmark_samples`."""
    task_keys = keys | {"task": "t", "metric": "acc"}
    return [
        task_keys | {"sample": sample, "value": value}
        for sample, value in enumerate(answers.tolist())
    ]


def calibration_row(model: str, calibration: str, replicate_of: str | None = None) -> Row:
    return {
        "model": model,
        "calibration": calibration,
        "kind": "choices",
        "source": "t",
        "chance_accuracy": 0.25,
        "replicate_of": replicate_of,
    }


SLIP = 0.1
"""By how much the difficulty of a document differs between variants."""


def write_drawn_studies(
    folder: Path, n_models: int, generator: np.random.Generator
) -> duckdb.DuckDBPyConnection:
    """Studies of three draws of one calibration, whose variants mostly answer alike.

    The base model answers .9 of the documents and each variant .6, before they slip.
    """
    n_documents = 300
    benchmarks: list[Row] = []
    samples: list[Row] = []
    calibrations: list[Row] = []
    for model_index in range(n_models):
        model = f"m{model_index}"
        difficulty = norm.ppf(generator.random(n_documents))
        text_losses = generator.gamma(4, 0.3, n_documents // 3)
        for calibration in ("none", "c", "c.2", "c.3"):
            is_base = calibration == "none"
            keys = {"model": model, **(BASE_KEYS if is_base else CUT_KEYS)}
            keys["calibration"] = calibration
            answered_share = 0.9 if is_base else 0.6
            slips = generator.normal(0, SLIP, n_documents)
            answers = (norm.cdf(difficulty + slips) < answered_share).astype(float)
            benchmarks.append(score_row(keys, answers))
            benchmarks.append(text_row(keys, text_losses + (0.0 if is_base else 0.2)))
            samples += answer_rows(keys, answers)
            if not is_base:
                calibrations.append(calibration_row(model, calibration, replicate_of="c"))
    files = write_tables(
        folder, benchmarks=benchmarks, benchmark_samples=samples, calibrations=calibrations
    )
    return database.connect_views(files)


def share_within(rows: list[Row], column: str, truth: float) -> float:
    """The share of rows whose number is within its error of the truth, of those that show one."""
    rows_with_error = [row for row in rows if row[f"{column}_stderr"] is not None]
    is_within = [
        abs(row[column] - truth) <= Z95 * row[f"{column}_stderr"] for row in rows_with_error
    ]
    return float(np.mean(is_within))


def test_errors_over_documents_that_draws_share_cover(tmp_path: Path) -> None:
    """Of the frontier's accuracy, and of what a recipe keeps."""
    n_models = 300
    connection = write_drawn_studies(tmp_path, n_models, np.random.default_rng(2))

    frontier_rows = query_rows(connection, "FROM frontier")
    recipe_rows = query_rows(connection, "FROM answers WHERE question = 'recipe'")

    # Slips widen the difficulty, so that shares are nearer to a half.
    base_accuracy = norm.cdf(norm.ppf(0.9) / np.hypot(1, SLIP))
    cut_accuracy = norm.cdf(norm.ppf(0.6) / np.hypot(1, SLIP))
    assert len(frontier_rows) == len(recipe_rows) == n_models
    assert 0.92 <= share_within(frontier_rows, "accuracy", cut_accuracy) <= 0.98
    assert 0.92 <= share_within(recipe_rows, "kept", cut_accuracy / base_accuracy) <= 0.98


@pytest.mark.parametrize(
    ("selector_spread", "calibration_spread", "most"),
    [(0.1, 0.0, 0.975), (0.0, 0.1, 0.975), (0.1, 0.1, 1.0)],
)
def test_means_over_draws_of_selectors_and_calibrations_cover(
    tmp_path: Path, selector_spread: float, calibration_spread: float, most: float
) -> None:
    """Three seeds of a random selector on four draws of a calibration, with a mean of .5.

    Where both vary, the interval is wider.
    """
    generator = np.random.default_rng(3)
    n_models = 400
    score = {
        "task": "t",
        "metric": "acc",
        "stderr": 0.01,
        "n_samples": 400,
        "higher_is_better": True,
    }
    benchmarks: list[Row] = []
    calibrations: list[Row] = []
    plans: list[Row] = []
    for model_index in range(n_models):
        model = f"m{model_index}"
        benchmarks.append({"model": model, **BASE_KEYS, **score, "value": 0.9})
        selector_effects = selector_spread * generator.standard_normal(3)
        calibration_effects = calibration_spread * generator.standard_normal(4)
        for calibration_index, calibration_effect in enumerate(calibration_effects):
            calibration = f"c.{calibration_index}"
            calibrations.append(calibration_row(model, calibration, replicate_of="c"))
            for selector_index, selector_effect in enumerate(selector_effects):
                keys = {
                    "model": model,
                    "calibration": calibration,
                    "selector": f"r.{selector_index}",
                    "removed": 2,
                }
                accuracy = 0.5 + selector_effect + calibration_effect
                benchmarks.append({**CUT_KEYS, **keys, **score, "value": accuracy})
                plans.append({**keys, "unit": "1", "position": 1, "replicate_of": "r"})
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=calibrations, plans=plans)

    rows = query_rows(database.connect_views(files), "FROM score_means")

    assert len(rows) == n_models
    assert {row["n_draws"] for row in rows} == {12}
    is_held = [row["ci_low"] <= 0.5 <= row["ci_high"] for row in rows]
    assert 0.925 <= np.mean(is_held) <= most


@pytest.mark.parametrize("n_documents", [30, 100])
@pytest.mark.parametrize(("lost", "won"), [(0.01, 0.0), (0.03, 0.0), (0.04, 0.03), (0.15, 0.05)])
def test_change_and_kept_cover_where_few_documents_differ(
    tmp_path: Path, n_documents: int, lost: float, won: float
) -> None:
    """Such shares of all documents are lost and won; the base model answers .8, chance is .25."""
    generator = np.random.default_rng(n_documents)
    n_models = 300
    benchmarks: list[Row] = []
    samples: list[Row] = []
    calibrations: list[Row] = []
    for model_index in range(n_models):
        model = f"m{model_index}"
        base = generator.random(n_documents) < 0.8
        luck = generator.random(n_documents)
        variant = np.where(base, luck >= lost / 0.8, luck < won / 0.2)
        for keys, is_right in ((BASE_KEYS, base), (CUT_KEYS, variant)):
            model_keys = {"model": model, **keys}
            answers = is_right.astype(float)
            benchmarks.append(score_row(model_keys, answers))
            samples += answer_rows(model_keys, answers)
        calibrations.append(calibration_row(model, "c"))
    files = write_tables(
        tmp_path, benchmarks=benchmarks, benchmark_samples=samples, calibrations=calibrations
    )

    rows = query_rows(database.connect_views(files), "FROM scores WHERE removed > 0")

    assert len(rows) == n_models
    least = 0.95 - three_errors(0.95, n_models)
    assert share_within(rows, "change", won - lost) >= least
    assert share_within(rows, "kept", 1 + (won - lost) / 0.8) >= least
    assert share_within(rows, "kept_above_chance", 1 + (won - lost) / 0.55) >= least


@pytest.mark.parametrize("n_documents", [30, 100, 400])
@pytest.mark.parametrize("changed_share", [0.05, 0.2, 0.5])
def test_a_change_of_nothing_is_hardly_ever_certain_of_one_of_eight(
    n_documents: int, changed_share: float
) -> None:
    """Answers are as often lost as won: one of eight may be certain in one study of twenty."""
    n_tried = 8
    n_studies = 2000
    generator = np.random.default_rng(n_documents)
    shape = (n_studies, n_tried, n_documents)
    is_changed = generator.random(shape) < changed_share
    differences = np.where(is_changed, generator.choice([-1, 1], shape), 0)
    change = np.abs(differences.mean(axis=2))
    n_changed = (differences != 0).sum(axis=2)
    # With one document more that differs each way.
    mean_square = (n_changed + 2) / (n_documents + 2)
    shrunk_change = change * n_documents / (n_documents + 2)
    error = np.sqrt(mean_square - shrunk_change**2) / (n_documents + 2) ** 0.5

    certain = is_certain(Lead(change, error, change / n_documents), n_tried)

    assert certain.any(axis=1).mean() <= 0.05 + three_errors(0.05, n_studies)
