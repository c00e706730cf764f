"""How metrics agree: against scipy and plain loops, and from the tables of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
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
from tests.report.test_database import VIEWS

BASE_SWEEP = {"model": "m", "selector": "base", "removed": 0}


def exact_draws(seed: int, n_tasks: int, n_units: int) -> list[np.ndarray]:
    """Draws by task, (1 + 200, units), with so little noise that measured and true scores are
    alike.
    """
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(n_tasks):
        true_scores = rng.normal(size=(1, n_units))
        draws.append(true_scores + 1e-3 * rng.normal(size=(201, n_units)))
    return draws


def pool(draws: list[np.ndarray], row: int) -> np.ndarray:
    """One draw of the scores of all tasks, (tasks · units,); row 0 is the estimate."""
    return np.concatenate([task_draws[row] for task_draws in draws])


def test_every_statistic_equals_an_independent_one() -> None:
    first = exact_draws(0, 3, 8)
    second = [a + b for a, b in zip(first, exact_draws(1, 3, 8), strict=True)]
    agreement = compare_metrics(first, second, 10**6)
    first_scores = pool(first, 0)
    second_scores = pool(second, 0)

    assert agreement.pearson and agreement.spearman
    pearson = stats.pearsonr(first_scores, second_scores).statistic
    spearman = stats.spearmanr(first_scores, second_scores).statistic
    assert agreement.pearson[0] == pytest.approx(pearson, abs=1e-3)
    assert agreement.spearman[0] == pytest.approx(spearman, abs=1e-3)
    drawn = [np.corrcoef(pool(first, row), pool(second, row))[0, 1] for row in range(1, 201)]
    assert agreement.pearson[1:] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=2e-3)

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


def test_a_metric_agrees_with_itself_and_one_task_has_no_variance() -> None:
    [scores] = exact_draws(2, 1, 6)
    agreement = compare_metrics([scores], [scores], 50)
    assert agreement.pearson == agreement.spearman == pytest.approx((1, 1, 1))
    assert agreement.misranked[:2] == agreement.badly[:2] == (0, 0)
    assert agreement.variance_ratio is None and agreement.p_value is None


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
    """In 95 % of 60 studies of 150 samples. Those of bootstrapped orders would not, where
    neighbours are near.
    """
    distance = np.abs(true_ranks(first) - true_ranks(second))
    true_misranked = (distance > 0).mean()
    true_badly = (distance > 1.5).mean()
    held = []
    drawn_order_held = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        weights = bootstrap_weights(150, seed, 100)
        first_draws = weights @ (np.array(first) + rng.normal(size=(150, 6)))
        second_draws = weights @ (np.array(second) + rng.normal(size=(150, 6)))
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


def test_equals_have_the_deeper_unit_first_in_both() -> None:
    first = np.array([[3.0, 1, 1, 1, 2]] * 3)
    second = np.array([[30.0, 10, 10, 10 + 1e-14, 20]] * 3)
    assert compare_metrics([first], [second], 50).misranked[0] == 0
    tied = np.array([[3.0, 1, 1.5, 1, 2]] * 3)
    assert compare_metrics([first], [tied], 50).misranked[0] == pytest.approx(2 / 5)


def sweep_and_calibrations(n_samples: int) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Two passes in one table: units of eight lose answers in the order of their numbers, and
    taylor falls.

    One task is at chance, and one was not swept.
    """
    rng = np.random.default_rng(3)
    rows = []
    for task, base_accuracy in (("good", 0.9), ("better", 0.95), ("guess", 0.5)):
        difficulty = rng.random(n_samples)
        for unit in ["none", *range(8)]:
            accuracy = base_accuracy if unit == "none" else base_accuracy - 0.08 * int(unit)
            for sample in range(n_samples):
                keys = BASE_SWEEP | {"calibration": task, "unit": str(unit), "sample": sample}
                is_right = bool(difficulty[sample] < accuracy)
                answer = {"correct": is_right, "correct_norm": is_right, "nll": 1.0, "n_tokens": 1}
                rows.append(keys | answer)
                if unit != "none":
                    taylor = 10.0 - int(unit) + 0.01 * rng.random()
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


def test_tables_of_a_run_are_compared_without_the_outer_layers_and_what_is_at_chance(
    tmp_path: Path,
) -> None:
    """Of the eight layers 2 to 5 are compared."""
    sweeps, calibrations = sweep_and_calibrations(100)
    [comparison] = comparison_rows(calibrations, sweeps, "accuracy", ["taylor", "cosine"])
    assert (comparison.model, comparison.kind, comparison.metric) == ("m", "layer", "taylor")
    assert comparison.calibrations == ["good", "better"]
    agreement = comparison.agreement
    assert agreement.n_units == 4
    assert agreement.spearman and agreement.spearman[0] < -0.9
    assert agreement.misranked[0] == 1
    estimate, low, high = agreement.pearson
    assert low <= estimate <= high < 0

    rows = agreement_rows(tmp_path, sweeps, calibrations)
    assert rows["spearman"]["value"] == agreement.spearman[0]
    assert rows["spearman"]["calibrations"] == "good, better"
    assert [rows["misranked"][key] for key in ("ci_low", "value", "ci_high")] == [1, 1, 1]
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
    finished = run_in_subprocess(
        CompareMetrics(
            relevance=str(relevance_file),
            sweeps=str(sweeps_file),
            calibrations=str(calibrations_file),
            output=str(output),
        )
    )
    assert finished.returncode == 0, finished.stderr
    return {row["statistic"]: row for row in parquet.read_table(output).to_pylist()}


def test_scores_that_are_all_equal_have_no_correlation_and_give_no_rows() -> None:
    scores = exact_draws(0, 2, 6)
    agreement = compare_metrics(scores, [np.ones((201, 6))] * 2, 50)
    assert agreement.pearson is agreement.spearman is agreement.variance_ratio is None


def opposite_sweeps(n_samples: int) -> pa.Table:
    """Accuracy by `acc` falls with the depth, by `acc_norm` it rises; cosine rises with the
    depth.
    """
    rng = np.random.default_rng(0)
    rows = []
    for task in ("one", "other"):
        difficulty = rng.random(n_samples)
        for unit in ["none", *range(6)]:
            lost = {"correct": 0.0, "correct_norm": 0.0}
            if unit != "none":
                lost = {"correct": 0.07 * int(unit), "correct_norm": 0.07 * (5 - int(unit))}
            for sample in range(n_samples):
                row = BASE_SWEEP | {"calibration": task, "unit": str(unit), "sample": sample}
                row |= {"nll": 1.0, "n_tokens": 1}
                for name, share in lost.items():
                    row[name] = bool(difficulty[sample] < 0.95 - share)
                if unit != "none":
                    row["cosine"] = int(unit) / 10 + 0.01 * rng.random()
                rows.append(row)
    return parquet.from_rows("sweeps", rows)


@pytest.mark.parametrize("choice_score", ["acc", "acc_norm"])
def test_tables_agree_on_how_choices_are_compared(choice_score: str, tmp_path: Path) -> None:
    """Every table of a run follows the calibration."""
    sweeps = opposite_sweeps(80)
    context = Context(0.25, choice_score)
    calibrations = []
    relevance_rows = []
    for task in ("one", "other"):
        keys = {"model": "m", "calibration": task}
        facts = {"n_samples": 80, "chance_accuracy": 0.25, "choice_score": choice_score}
        calibrations.append(keys | facts)
        of_task = sweeps.filter(pc.equal(sweeps["calibration"], task))
        for row in score_sweep(of_task, ["accuracy", "cosine"], context, 0):
            relevance_rows.append(row | keys | {"selector": "base", "removed": 0})

    scores = {
        (row["calibration"], row["unit"]): row["score"]
        for row in relevance_rows
        if row["metric"] == "accuracy"
    }
    is_rising = scores["one", "0"] < scores["one", "5"]
    assert is_rising == (choice_score == "acc")
    [comparison] = comparison_rows(calibrations, sweeps, "accuracy", ["cosine"])
    assert comparison.agreement.spearman
    assert (comparison.agreement.spearman[0] > 0.8) == is_rising
    for row in dissociation_rows(calibrations, sweeps):
        difference = scores["one", row["unit"]] - scores["other", row["unit"]]
        assert row["difference"] == pytest.approx(difference)

    files = write_tables(
        tmp_path, relevance=relevance_rows, sweeps=sweeps.to_pylist(), calibrations=calibrations
    )
    drawn_rows = calibration_size.read_rows(database.connect_views(VIEWS, files))
    columns = from_table(sweeps.filter(pc.equal(sweeps["calibration"], "one")))
    _, (median, _, _) = next(ranking_stability(columns, "accuracy", context))
    drawn = next(r for r in drawn_rows if (r["calibration"], r["metric"]) == ("one", "accuracy"))
    assert drawn["median"] == pytest.approx(median)
