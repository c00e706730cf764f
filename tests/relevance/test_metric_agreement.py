"""How metrics agree: against scipy and plain loops, also from the tables of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset
from scipy import stats

from lamina.relevance.columns import Context, from_table
from lamina.relevance.dissociation import dissociation_rows
from lamina.relevance.metric_agreement import compare_metrics, comparison_rows
from lamina.relevance.score import score_sweep
from lamina.relevance.stability import ranking_stability
from lamina.relevance.statistics import bootstrap_weights
from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.figures import calibration_size
from lamina_workflow.stages.report import CompareMetrics
from tests.given.plausible_tables import write_tables
from tests.given.scripts import run_in_subprocess

BASE_SWEEP = {"model": "m", "selector": "base", "removed": 0}


def exact_draws(seed: int, n_tasks: int, n_units: int) -> list[np.ndarray]:
    """Draws by task, (1 + 200, units), with next to no noise in the scores."""
    generator = np.random.default_rng(seed)
    draws: list[np.ndarray] = []
    for _ in range(n_tasks):
        true_scores = generator.normal(size=(1, n_units))
        draws.append(true_scores + 1e-3 * generator.normal(size=(201, n_units)))
    return draws


def pool(draws: list[np.ndarray], row: int) -> np.ndarray:
    """One draw of the scores of all tasks, (tasks · units,); row 0 is the estimate."""
    return np.concatenate([task_draws[row] for task_draws in draws])


def test_every_statistic_equals_an_independent_one() -> None:
    first = exact_draws(0, 3, 8)
    differences = exact_draws(1, 3, 8)
    second = [scores + difference for scores, difference in zip(first, differences, strict=True)]

    agreement = compare_metrics(first, second, 10**6)

    first_scores = pool(first, 0)
    second_scores = pool(second, 0)
    assert agreement.pearson is not None
    assert agreement.spearman is not None
    pearson = stats.pearsonr(first_scores, second_scores).statistic
    spearman = stats.spearmanr(first_scores, second_scores).statistic
    assert agreement.pearson[0] == pytest.approx(pearson, abs=1e-3)
    assert agreement.spearman[0] == pytest.approx(spearman, abs=1e-3)
    drawn_correlations: list[float] = []
    for row in range(1, 201):
        drawn_pearson = stats.pearsonr(pool(first, row), pool(second, row)).statistic
        drawn_correlations.append(drawn_pearson)
    interval = np.percentile(drawn_correlations, [2.5, 97.5])
    assert agreement.pearson[1:] == pytest.approx(interval, abs=2e-3)

    n_misranked = 0
    n_badly = 0
    for first_task, second_task in zip(first, second, strict=True):
        for unit in range(8):
            first_rank = sum(first_task[0] < first_task[0, unit])
            second_rank = sum(second_task[0] < second_task[0, unit])
            n_misranked += first_rank != second_rank
            n_badly += abs(first_rank - second_rank) > 2
    assert agreement.misranked[0] == n_misranked / 24
    assert agreement.badly[0] == n_badly / 24

    first_variances = unit_variances(first)
    second_variances = unit_variances(second)
    variance_ratio = np.mean(first_variances) / np.mean(second_variances)
    assert agreement.variance_ratio is not None
    assert agreement.variance_ratio[0] == pytest.approx(variance_ratio, rel=3e-3)
    p_value = stats.wilcoxon(first_variances, second_variances).pvalue
    assert agreement.p_value == pytest.approx(p_value)


def unit_variances(draws: list[np.ndarray]) -> list[float]:
    """Variance across tasks of each unit's standardised score."""
    scores = np.array([task_draws[0] for task_draws in draws])
    standardised = (scores - scores.mean()) / scores.std()
    return [float(np.mean((column - column.mean()) ** 2)) for column in standardised.T]


def test_a_metric_agrees_with_itself() -> None:
    [scores] = exact_draws(2, 1, 6)

    agreement = compare_metrics([scores], [scores], 50)

    assert agreement.pearson == agreement.spearman == pytest.approx((1, 1, 1))
    assert agreement.misranked[:2] == agreement.badly[:2] == (0, 0)


def test_one_task_has_no_variance_across_tasks() -> None:
    [scores] = exact_draws(2, 1, 6)

    agreement = compare_metrics([scores], [scores], 50)

    assert agreement.variance_ratio is None
    assert agreement.p_value is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "is_clear"),
    [
        ([0, 0.03, 0.06, 0.09, 0.12, 0.15], [0, 0.03, 0.06, 0.09, 0.12, 0.15], False),
        ([0, 0, 0.05, 0.6, 1.2, 2], [0.05, 0, 0, 0.6, 2, 1.2], False),
        ([0, 1, 2, 3, 4, 5], [5, 3, 4, 1, 2, 0], True),
    ],
    ids=["nearly equal, same order", "some ties", "clear"],
)
def test_intervals_of_misranked_shares_hold_the_true_one(
    first: list[float], second: list[float], is_clear: bool
) -> None:
    """In 95 % of 60 studies of 150 samples.

    Percentiles of bootstrapped orders would not, where neighbours are near.
    """
    distance = np.abs(true_ranks(first) - true_ranks(second))
    true_misranked = (distance > 0).mean()
    true_badly = (distance > 1.5).mean()
    held: list[bool] = []
    drawn_order_held: list[bool] = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        weights = bootstrap_weights(150, seed, 100)
        first_draws = weights @ (np.array(first) + generator.normal(size=(150, 6)))
        second_draws = weights @ (np.array(second) + generator.normal(size=(150, 6)))

        agreement = compare_metrics([first_draws], [second_draws], 150)

        for interval, truth in (
            (agreement.misranked, true_misranked),
            (agreement.badly, true_badly),
        ):
            estimate, low, high = interval
            assert low <= estimate <= high
            assert low == high or not is_clear
            held.append(low <= truth <= high)

        first_order = first_draws[1:].argsort(axis=1).argsort(axis=1)
        second_order = second_draws[1:].argsort(axis=1).argsort(axis=1)
        drawn_shares = (first_order != second_order).mean(axis=1)
        low, high = np.percentile(drawn_shares, [2.5, 97.5])
        drawn_order_held.append(low <= true_misranked <= high)
    assert np.mean(held) >= 0.95
    if first[1] == 0.03:
        assert np.mean(drawn_order_held) < 0.5


def true_ranks(scores: list[float]) -> np.ndarray:
    """Ranks from 0; among equals the deeper unit is less relevant."""
    return np.lexsort((-np.arange(len(scores)), scores)).argsort()


@pytest.mark.parametrize(
    ("second_scores", "misranked_share"),
    [
        ([30.0, 10, 10, 10 + 1e-14, 20], 0),
        ([3.0, 1, 1.5, 1, 2], 2 / 5),
    ],
    ids=["ties but for rounding", "one tie less"],
)
def test_of_units_with_equal_scores_the_deeper_one_is_first_in_both_metrics(
    second_scores: list[float], misranked_share: float
) -> None:
    first_draws = np.array([[3.0, 1, 1, 1, 2]] * 3)
    second_draws = np.array([second_scores] * 3)

    agreement = compare_metrics([first_draws], [second_draws], 50)

    assert agreement.misranked[0] == pytest.approx(misranked_share)


def sweep_and_calibrations(n_samples: int) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Two passes in one table: deeper layers lose more answers and have less taylor relevance.

    One task is at chance, and one was not swept.
    """
    generator = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for task, base_accuracy in (("good", 0.9), ("better", 0.95), ("guess", 0.5)):
        difficulty = generator.random(n_samples)
        for unit in ["none", *range(8)]:
            accuracy = base_accuracy if unit == "none" else base_accuracy - 0.08 * int(unit)
            for sample in range(n_samples):
                keys = BASE_SWEEP | {"calibration": task, "unit": str(unit), "sample": sample}
                is_right = bool(difficulty[sample] < accuracy)
                answer = {"correct": is_right, "correct_norm": is_right, "nll": 1.0, "n_tokens": 1}
                rows.append(keys | answer)
                if unit != "none":
                    taylor = 10.0 - int(unit) + 0.01 * generator.random()
                    rows.append(keys | {"taylor": taylor, "magnitude": 1.0})
    calibrations = [
        {
            "model": "m",
            "calibration": task,
            "n_samples": n_samples,
            "chance_accuracy": 0.5,
            "choice_score": "acc_norm",
        }
        for task in ("good", "better", "guess", "unswept")
    ]
    return parquet.from_rows("sweeps", rows), calibrations


def test_metrics_are_compared_without_the_outer_layers_and_tasks_at_chance() -> None:
    """Layers 2 to 5 of eight."""
    sweeps, calibrations = sweep_and_calibrations(100)

    [comparison] = comparison_rows(
        calibrations, dataset.dataset(sweeps), "accuracy", ["taylor", "cosine"]
    )

    agreement = comparison.agreement
    assert comparison.model == "m"
    assert comparison.kind == "layer"
    assert comparison.metric == "taylor"
    assert comparison.calibrations == ["good", "better"]
    assert agreement.n_units == 4
    assert agreement.misranked[0] == 1
    assert agreement.spearman is not None
    assert agreement.spearman[0] < -0.9
    assert agreement.pearson is not None
    estimate, low, high = agreement.pearson
    assert low <= estimate <= high < 0


def test_table_agreements_holds_the_comparison_of_a_run(tmp_path: Path) -> None:
    sweeps, calibrations = sweep_and_calibrations(100)

    rows = agreement_rows(tmp_path, sweeps, calibrations)

    [comparison] = comparison_rows(calibrations, dataset.dataset(sweeps), "accuracy", ["taylor"])
    agreement = comparison.agreement
    assert agreement.spearman is not None
    assert rows["spearman"]["value"] == agreement.spearman[0]
    assert rows["spearman"]["calibrations"] == "good, better"
    misranked = rows["misranked"]
    assert misranked["ci_low"] == misranked["value"] == misranked["ci_high"] == 1
    assert rows["variance_ratio"]["p_value"] == agreement.p_value
    assert rows["pearson"]["n_samples"] == 200


def agreement_rows(
    folder: Path, sweeps: pa.Table, calibrations: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Rows of table `agreements` by statistic, as the script of the rule writes it."""
    relevance_file = folder / "relevance.parquet"
    calibrations_file = folder / "calibrations.parquet"
    sweeps_file = folder / "sweeps.parquet"
    output = folder / "agreements.parquet"
    scored = [{"metric": "taylor", "score": 1.0}]
    parquet.write_table(relevance_file, parquet.from_rows("relevance", scored))
    parquet.write_table(calibrations_file, parquet.from_rows("calibrations", calibrations))
    parquet.write_table(sweeps_file, sweeps)
    job = CompareMetrics(
        relevance=str(relevance_file),
        sweeps=str(sweeps_file),
        calibrations=str(calibrations_file),
        output=str(output),
    )
    process = run_in_subprocess(job)
    assert process.returncode == 0, process.stderr
    return {row["statistic"]: row for row in parquet.read_table(output).to_pylist()}


def test_scores_that_are_all_equal_have_no_correlation() -> None:
    draws = exact_draws(0, 2, 6)
    equal_draws = [np.ones((201, 6)), np.ones((201, 6))]

    agreement = compare_metrics(draws, equal_draws, 50)

    assert agreement.pearson is agreement.spearman is agreement.variance_ratio is None


def opposite_sweeps(n_samples: int) -> pa.Table:
    """Without deeper layers, accuracy by `acc` is lower and by `acc_norm` higher; cosine rises."""
    generator = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for task in ("first", "second"):
        difficulty = generator.random(n_samples)
        for unit in ["none", *range(6)]:
            lost_shares = {"correct": 0.0, "correct_norm": 0.0}
            if unit != "none":
                lost_shares = {
                    "correct": 0.07 * int(unit),
                    "correct_norm": 0.07 * (5 - int(unit)),
                }
            for sample in range(n_samples):
                row = BASE_SWEEP | {"calibration": task, "unit": str(unit), "sample": sample}
                row |= {"nll": 1.0, "n_tokens": 1}
                for column, lost_share in lost_shares.items():
                    row[column] = bool(difficulty[sample] < 0.95 - lost_share)
                if unit != "none":
                    row["cosine"] = int(unit) / 10 + 0.01 * generator.random()
                rows.append(row)
    return parquet.from_rows("sweeps", rows)


N_SAMPLES = 80
TASKS = ("first", "second")


def calibration_rows(choice_score: str) -> list[dict[str, Any]]:
    return [
        {
            "model": "m",
            "calibration": task,
            "n_samples": N_SAMPLES,
            "chance_accuracy": 0.25,
            "choice_score": choice_score,
        }
        for task in TASKS
    ]


def relevance_rows(choice_score: str) -> list[dict[str, Any]]:
    """Rows of table `relevance` of both tasks."""
    sweeps = opposite_sweeps(N_SAMPLES)
    context = Context(0.25, choice_score)
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        task_sweep = sweeps.filter(pc.equal(sweeps["calibration"], task))
        keys = {"model": "m", "calibration": task, "selector": "base", "removed": 0}
        for row in score_sweep(task_sweep, ["accuracy", "cosine"], context, 0):
            rows.append(row | keys)
    return rows


def accuracy_scores(choice_score: str) -> dict[tuple[str, str], float]:
    """Accuracy relevance by task and unit."""
    scores: dict[tuple[str, str], float] = {}
    for row in relevance_rows(choice_score):
        if row["metric"] == "accuracy":
            scores[row["calibration"], row["unit"]] = row["score"]
    return scores


@pytest.mark.parametrize(("choice_score", "rises"), [("acc", True), ("acc_norm", False)])
def test_relevance_and_agreement_compare_choices_as_the_calibration_says(
    choice_score: str, rises: bool
) -> None:
    scores = accuracy_scores(choice_score)
    [comparison] = comparison_rows(
        calibration_rows(choice_score),
        dataset.dataset(opposite_sweeps(N_SAMPLES)),
        "accuracy",
        ["cosine"],
    )

    assert (scores["first", "0"] < scores["first", "5"]) == rises
    assert comparison.agreement.spearman is not None
    assert (comparison.agreement.spearman[0] > 0.8) == rises


@pytest.mark.parametrize("choice_score", ["acc", "acc_norm"])
def test_dissociations_are_differences_of_relevance(choice_score: str) -> None:
    sweeps = opposite_sweeps(N_SAMPLES)

    rows = list(dissociation_rows(calibration_rows(choice_score), dataset.dataset(sweeps)))

    scores = accuracy_scores(choice_score)
    assert {row["unit"] for row in rows} == {str(layer) for layer in range(6)}
    for row in rows:
        difference = scores["first", row["unit"]] - scores["second", row["unit"]]
        assert row["difference"] == pytest.approx(difference)


@pytest.mark.parametrize("choice_score", ["acc", "acc_norm"])
def test_the_figure_of_calibration_sizes_draws_the_stability_of_relevance(
    choice_score: str, tmp_path: Path
) -> None:
    sweeps = opposite_sweeps(N_SAMPLES)
    files = write_tables(
        tmp_path,
        relevance=relevance_rows(choice_score),
        sweeps=sweeps.to_pylist(),
        calibrations=calibration_rows(choice_score),
    )

    figure_rows = calibration_size.read_rows(database.connect_views(files))

    columns = from_table(sweeps.filter(pc.equal(sweeps["calibration"], "first")))
    context = Context(0.25, choice_score)
    _, (median, _, _) = next(ranking_stability(columns, "accuracy", context))
    medians = {(row["calibration"], row["metric"]): row["median"] for row in figure_rows}
    assert medians["first", "accuracy"] == pytest.approx(median)
